"""Model folders that somebody damaged or made up: one sentence says what is wrong, nothing hangs or ends in a trace."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import DATA
from tiny_vllm.errors import UserError
from tiny_vllm.models.checkpoint import Checkpoint
from tiny_vllm.models.config import ModelConfig
from tiny_vllm.models.hub import resolve_model
from tiny_vllm.models.tokenizer import Tokenizer

HELLO = [{"role": "user", "content": "Hello"}]


def changed(tmp_path: Path, file: str, model: str = "tiny", /, **changes: Any) -> Path:
    """A copy of a tiny model with keys of one of its JSON files changed."""
    folder = tmp_path / "model"
    shutil.copytree(DATA / "tiny" / model, folder)
    (folder / file).write_text(json.dumps(json.loads((folder / file).read_text()) | changes))
    return folder


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("rms_norm_eps", 10**400, "a finite number above 0, within float32"),
        ("rms_norm_eps", 1e300, "a finite number above 0, within float32"),
        ("rope_theta", 1e-300, "a finite number above 0, within float32"),
        ("num_hidden_layers", 10**9, "at least 1 and at most 1024"),
        ("max_position_embeddings", 10**30, "at least 1 and at most 2147483647"),
    ],
)
def test_numbers_beyond_what_kernels_hold(tmp_path, key, value, says):
    with pytest.raises(UserError, match=f"{key} is .*{says}"):
        ModelConfig.from_folder(changed(tmp_path, "config.json", **{key: value}))


def test_a_config_saved_with_a_mark_in_front(tmp_path):
    folder = changed(tmp_path, "config.json")
    (folder / "config.json").write_bytes(b"\xef\xbb\xbf" + (folder / "config.json").read_bytes())
    assert ModelConfig.from_folder(folder) == ModelConfig.from_folder(DATA / "tiny" / "tiny")


@pytest.mark.parametrize("name", ["../model/model-00001-of-00003.safetensors", "/etc/passwd", "a/../../b"])
def test_an_index_that_leads_out_of_the_folder(tmp_path, name):
    folder = changed(tmp_path, "model.safetensors.index.json", "tiny-untied-sharded", weight_map={"a": name})
    with pytest.raises(UserError, match="lies outside the folder; copy it in"):
        Checkpoint(folder)


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", ""])
def test_an_index_of_names_that_no_file_has(tmp_path, name):
    folder = changed(tmp_path, "model.safetensors.index.json", "tiny-untied-sharded", weight_map={"a": name})
    with pytest.raises(UserError, match="not in the folder; download it too"):
        Checkpoint(folder)


@pytest.mark.parametrize("name", ["~nobody_has_this_name/x", "x" * 5000, "org/" + "x" * 300])
def test_a_model_name_that_no_folder_has(name, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match="neither a folder nor a hub id"):
        resolve_model(name)


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{% break %}", "the chat template is wrong: 'break' outside loop"),
        ("{{ " + "(" * 3000 + ")" * 3000 + " }}", "the chat template is wrong: maximum recursion"),
        ("{{ 'x' * 20000000 }}", "makes 20,000,000 characters of them; the limit is 10,000,000"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ cycler.__init__.__globals__.os }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ range(10000000) | list }}", "Range too big"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "maximum recursion"),
        ([{"name": [], "template": "x"}, {"name": "b", "template": "y"}], "one should be called default"),
    ],
)
def test_chat_templates_that_mean_harm(tmp_path, template, says):
    tokenizer = Tokenizer.from_folder(changed(tmp_path, "tokenizer_config.json", chat_template=template))
    with pytest.raises(UserError, match=says):
        tokenizer.apply_chat_template(HELLO)


def test_a_chat_template_that_is_no_text(tmp_path):
    folder = changed(tmp_path, "tokenizer_config.json")
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"chat_template\.jinja cannot be read: .*; download it again"):
        Tokenizer.from_folder(folder).apply_chat_template(HELLO)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "AAAA"}),  # a panic, while it is read
        ("model", {"type": "WordLevel", "vocab": {}, "unk_token": "zz"}),  # an Exception, at the first text
        (
            "post_processor",  # a panic, at the first text
            {
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "zz", "type_id": 0}}],
                "pair": [],
                "special_tokens": {},
            },
        ),
    ],
)
def test_a_tokenizer_that_the_library_panics_at(tmp_path, key, value):
    folder = changed(tmp_path, "tokenizer.json", **{key: value})
    with pytest.raises(UserError, match=r"tokenizer\.json cannot .*download it again"):
        Tokenizer.from_folder(folder).encode("Hello")
