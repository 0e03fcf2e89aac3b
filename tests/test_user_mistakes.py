"""Mistakes in the Python API and in the environment: one sentence with a way out, never a trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import DATA
from tiny_vllm import LLM, SamplingParams
from tiny_vllm.cache import cache_root, expanded
from tiny_vllm.device import get_device
from tiny_vllm.device.source import default_overlay
from tiny_vllm.errors import UserError

TINY = DATA / "tiny" / "tiny"
ROOT = Path(__file__).resolve().parents[1]
ONE = SamplingParams(temperature=0, max_tokens=1)
COMMAND = [sys.executable, "-m", "tiny_vllm", "generate", "--model", str(TINY), "--device", "emulator"]


@pytest.fixture(scope="module")
def llm():
    with LLM(TINY, device="emulator", max_model_len=64) as made:
        yield made


@pytest.mark.parametrize("messages", [[None], [5], b"ab", [[{"role": "user", "content": "a"}], 5], None, {}])
def test_messages_of_another_form(llm, messages):
    with pytest.raises(UserError, match=r"messages.* give "):
        llm.chat(messages, ONE)


@pytest.mark.parametrize("conversation", [None, 5, "text"])
def test_a_conversation_of_another_form(llm, conversation):
    with pytest.raises(UserError, match=r"messages is .*; give a list"):
        llm.chat_prompt(conversation)


@pytest.mark.parametrize(
    "prompt",
    [{"prompt": 5, "prompt_token_ids": [1]}, {"prompt": "a", "temperature": 0}, {"prompt_token_ids": [1], "x": 2}],
)
def test_nothing_in_a_prompt_is_ignored(llm, prompt):
    with pytest.raises(UserError, match=r"a prompt is .*; give a text"):
        llm.generate(prompt, ONE)


def test_ops_that_make_something_else():
    with pytest.raises(UserError, match="ops made None; it should make an Ops object"):
        LLM(TINY, device="emulator", max_model_len=16, ops=lambda *arguments: None)  # type: ignore[arg-type]


def test_a_home_that_does_not_exist(monkeypatch):
    name = "~nobody_has_this_name/x"
    assert expanded(name) == Path(name)
    monkeypatch.setenv("TINY_VLLM_CACHE", name)
    monkeypatch.setenv("TINY_VLLM_WORK", name)
    assert cache_root() == Path(name).absolute()
    with pytest.raises(UserError, match=f"TINY_VLLM_WORK is '{name}', which is no folder; name one"):
        default_overlay()


def test_an_empty_variable_counts_as_unset(monkeypatch):
    monkeypatch.setenv("TINY_VLLM_DEVICE", "")
    assert get_device().name in ("cuda", "emulator")


def run(*arguments: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "--max-tokens", "12", *arguments], capture_output=True, text=True, cwd=ROOT, timeout=120, **settings
    )


def test_json_in_an_encoding_without_its_characters():
    done = run("--json", "é😀", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert not json.loads(done.stdout)["text"].isascii()


@pytest.mark.parametrize("stdin", ["closed", "latin-1"])
def test_a_standard_input_that_cannot_be_read(stdin, tmp_path):
    (tmp_path / "prompt").write_bytes(b"\xff")
    redirection = "<&-" if stdin == "closed" else f"< {tmp_path}/prompt"
    command = ["sh", "-c", f'exec "$@" {redirection}', "sh", *COMMAND, "-"]
    strict = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=strict, timeout=120)
    assert done.returncode == 2
    assert "no prompt can be read from standard input" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_closed_standard_output():
    command = ["sh", "-c", 'exec "$@" >&-', "sh", *COMMAND, "--max-tokens", "2", "a"]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "tokens" in done.stderr
