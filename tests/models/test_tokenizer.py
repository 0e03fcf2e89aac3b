"""The tokenizer against Hugging Face's ids, BOS rules, streams of text, and chat templates."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import DATA
from tiny_vllm.errors import UserError
from tiny_vllm.models.tokenizer import Tokenizer

TINY = DATA / "tiny" / "tiny"
SMOLLM2 = json.loads((DATA / "smollm2_135m_instruct.json").read_text())
HELLO = [{"role": "user", "content": "Hello"}]
BOS, OPEN, EOS = 509, 510, 511
TEXTS = ["", "a", "Hello, tiny world! 你好 123", "👍🏽 é\u0301 नमस्ते", "a<|im_end|>b", "\x00\n\t"]
ADDS_BOS = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [BOS], "tokens": ["<|endoftext|>"]}},
}


def make(folder: Path, inner: dict[str, Any] | None = None, jinja: str | None = None, **settings: Any) -> Tokenizer:
    """The tiny tokenizer with keys of tokenizer.json (inner) and tokenizer_config.json (settings) changed."""
    for name, changes in (("tokenizer.json", inner or {}), ("tokenizer_config.json", settings)):
        data = json.loads((TINY / name).read_text()) | changes
        (folder / name).write_text(json.dumps(data))
    if jinja is not None:
        (folder / "chat_template.jinja").write_text(jinja)
    return Tokenizer.from_folder(folder)


# ---- ids


def test_the_goldens_text(tiny_folder: Path) -> None:
    golden = json.loads((tiny_folder / "golden.json").read_text())
    tokenizer = Tokenizer.from_folder(tiny_folder)
    ids = golden["prompts"][-1]["ids"]
    assert tokenizer.encode(golden["text_of_last_prompt"]) == ids
    assert tokenizer.decode(ids) == golden["text_of_last_prompt"]


@pytest.mark.parametrize(("text", "ids"), SMOLLM2["tokenizer_cases"])
def test_smollm2_cases(smollm2_folder: Path, text: str, ids: list[int]) -> None:
    tokenizer = Tokenizer.from_folder(smollm2_folder)
    assert tokenizer.encode(text) == ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_smollm2_chat(smollm2_folder: Path) -> None:
    """The chat of the goldens, whose system message the model's template puts there."""
    tokenizer = Tokenizer.from_folder(smollm2_folder)
    golden = next(prompt for prompt in SMOLLM2["prompts"] if prompt["name"] == "chat_single")
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    assert tokenizer.apply_chat_template(messages) == golden["text"]
    assert tokenizer.encode_chat(messages) == golden["ids"]
    assert tokenizer.eos_token_id == SMOLLM2["eos_token_id"]


def test_special_tokens_and_size() -> None:
    tokenizer = Tokenizer.from_folder(TINY)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.vocab_size) == (BOS, EOS, 512)
    assert tokenizer.encode("a<|im_end|>b") == [97, EOS, 98]
    assert tokenizer.decode([97, EOS, 98]) == "ab"
    assert tokenizer.decode([97, EOS, 98], skip_special_tokens=False) == "a<|im_end|>b"
    assert tokenizer.token(EOS) == "<|im_end|>"
    assert tokenizer.decode([]) == tokenizer.decode([600]) == ""


def test_tokens_given_as_objects(tmp_path: Path) -> None:
    tokenizer = make(tmp_path, bos_token={"content": "<|im_start|>", "lstrip": False}, eos_token=None)
    assert tokenizer.bos_token_id == OPEN and tokenizer.eos_token_id is None


def test_without_tokenizer_config(tmp_path: Path) -> None:
    shutil.copy(TINY / "tokenizer.json", tmp_path)
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.encode("a") == [97] and tokenizer.bos_token_id is None


@pytest.mark.parametrize(
    ("post_processor", "settings", "bos"),
    [
        (None, {}, False),
        (ADDS_BOS, {}, True),
        (None, {"add_bos_token": True}, True),
        (ADDS_BOS, {"add_bos_token": True}, True),
        (None, {"add_bos_token": False, "tokenizer_class": "LlamaTokenizer"}, False),
        (ADDS_BOS, {"add_bos_token": False, "tokenizer_class": "LlamaTokenizerFast"}, False),
        (ADDS_BOS, {"add_bos_token": False, "tokenizer_class": "PreTrainedTokenizerFast"}, True),
    ],
)
def test_who_adds_the_bos(tmp_path: Path, post_processor: Any, settings: dict[str, Any], bos: bool) -> None:
    tokenizer = make(tmp_path, {"post_processor": post_processor}, **settings)
    for text in ("", "qx"):
        ids = [*text.encode()]
        assert tokenizer.encode(text) == [BOS] * bos + ids
        assert tokenizer.encode(text, add_special_tokens=False) == ids


def test_a_chat_has_one_bos(tmp_path: Path) -> None:
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    tokenizer = make(tmp_path, {"post_processor": ADDS_BOS}, add_bos_token=True, chat_template=template)
    assert tokenizer.encode_chat([{"role": "user", "content": "qx"}]) == [BOS, *b"qx"]


def test_truncation_and_padding_of_the_file_are_off(tmp_path: Path) -> None:
    truncation = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    padding = {
        "strategy": {"Fixed": 9},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": BOS,
        "pad_type_id": 0,
        "pad_token": "<|endoftext|>",
    }
    assert make(tmp_path, {"truncation": truncation, "padding": padding}).encode("qxqxqx") == [*b"qxqxqx"]


# ---- streams


@pytest.mark.parametrize("text", TEXTS)
def test_a_stream_holds_back_half_characters(text: str) -> None:
    tokenizer = Tokenizer.from_folder(TINY)
    ids = tokenizer.encode(text)
    stream = tokenizer.decode_stream()
    pieces = [stream.step(token) for token in ids]
    assert "".join(pieces) == tokenizer.decode(ids)
    assert not any("\ufffd" in piece for piece in pieces)


def test_two_streams_do_not_mix() -> None:
    tokenizer = Tokenizer.from_folder(TINY)
    one, other = tokenizer.decode_stream(), tokenizer.decode_stream(skip_special_tokens=False)
    first, second = tokenizer.encode("你"), [*tokenizer.encode("好"), EOS]
    texts = ["", ""]
    for a, b in zip([*first, 97], second):
        texts[0] += one.step(a)
        texts[1] += other.step(b)
    assert texts == ["你a", "好<|im_end|>"]


# ---- chats


def test_the_tiny_template() -> None:
    tokenizer = Tokenizer.from_folder(TINY)
    text = "<|im_start|>user\nHello<|im_end|>\n"
    assert tokenizer.apply_chat_template(HELLO, add_generation_prompt=False) == text
    assert tokenizer.apply_chat_template(HELLO) == text + "<|im_start|>assistant\n"
    assert tokenizer.encode_chat(HELLO)[:1] == [OPEN]


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),  # trim_blocks and lstrip_blocks
        ("{% for m in [1, 2, 3] %}{% if m == 2 %}{% break %}{% endif %}{{ m }}{% endfor %}", "1"),
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "<é>"}'),
        ("{{ bos_token + eos_token }}", "<|endoftext|><|im_end|>"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{% generation %}{{ messages[0]['content'] }}{% endgeneration %}!", "<é>!"),
        ("{% if tools is not none %}t{% endif %}{{ messages | length }}", "1"),
        ("{% set ns = namespace(n=0) %}{% set ns.n = 5 %}{{ ns.n }}", "5"),
    ],
)
def test_templates_run_as_hugging_face_runs_them(tmp_path: Path, template: str, text: str) -> None:
    tokenizer = make(tmp_path, chat_template=template)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "<é>"}]) == text


def test_where_the_template_is_found(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tool"}, {"name": "default", "template": "plain"}]
    assert make(tmp_path, chat_template=named).apply_chat_template(HELLO) == "plain"
    assert make(tmp_path, chat_template=named[:1]).apply_chat_template(HELLO) == "tool"
    assert make(tmp_path, chat_template=named, jinja="file").apply_chat_template(HELLO) == "file"


NAMED = [{"name": "a", "template": "x"}, {"name": "b", "template": "y"}]
REFUSED_TEMPLATES = [
    ({"chat_template": None}, "has no chat template; give a prompt instead of messages"),
    ({"chat_template": 7}, "chat_template is 7; it should be a text or a list of named templates"),
    ({"chat_template": NAMED}, "chat_template names ['a', 'b']; one should be called default"),
    ({"chat_template": "a\n{% if %}"}, "the chat template is wrong at line 2"),
    (
        {"chat_template": "{{ raise_exception('roles must alternate') }}"},
        "refuses these messages: roles must alternate",
    ),
    ({"chat_template": "{{ messages[0].nothing.more }}"}, "the chat template refuses these messages"),
    ({"chat_template": "{{ messages.append(1) }}"}, "the chat template refuses these messages"),
    ({"chat_template": "{{ ''.__class__.__mro__ }}"}, "the chat template refuses these messages"),
    ({"chat_template": "{{ 1 + 'a' }}"}, "the chat template refuses these messages"),
]


@pytest.mark.parametrize(("settings", "words"), REFUSED_TEMPLATES)
def test_templates_that_are_refused(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    tokenizer = make(tmp_path, **settings)  # a bad template does not keep a prompt from working
    assert tokenizer.encode("a") == [97]
    with pytest.raises(UserError) as error:
        tokenizer.apply_chat_template(HELLO)
    assert str(tmp_path) in str(error.value) and words in str(error.value)


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "messages is []; give a list such as"),
        ("Hello", "messages is 'Hello'; give a list such as"),
        ({"role": "user", "content": "x"}, "give a list such as"),
        (None, "messages is None; give a list such as"),
        (["Hello"], "messages[0] is 'Hello'; give {"),
        ([*HELLO, {"role": "user"}], "messages[1] has None as its content; give a text"),
        ([{"content": "x"}], "messages[0] has None as its role; give a text"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0] has [{'type': 'text'}] as its content"),
    ],
)
def test_ill_formed_messages(messages: Any, words: str) -> None:
    with pytest.raises(UserError) as error:
        Tokenizer.from_folder(TINY).encode_chat(messages)
    assert words in str(error.value)


# ---- what is wrong with files and prompts


def test_wrong_files(tmp_path: Path) -> None:
    def error() -> str:
        with pytest.raises(UserError) as caught:
            Tokenizer.from_folder(tmp_path)
        return str(caught.value)

    assert error() == f"{tmp_path} has no tokenizer.json; copy it from where the checkpoint came from"
    (tmp_path / "tokenizer.json").write_text("{}")
    assert error().startswith(f"{tmp_path / 'tokenizer.json'} cannot be read as a tokenizer: ")
    shutil.copy(TINY / "tokenizer.json", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    assert "tokenizer_config.json is not JSON at line 1" in error()
    (tmp_path / "tokenizer_config.json").write_text('{"add_bos_token": true, "bos_token": "<s>"}')
    assert "add_bos_token is true and bos_token '<s>' is no token" in error()


def test_wrong_prompts() -> None:
    tokenizer = Tokenizer.from_folder(TINY)
    with pytest.raises(UserError, match=r"the prompt is \[1, 2\]; give a text"):
        tokenizer.encode([1, 2])  # type: ignore[arg-type]
    with pytest.raises(UserError, match="half a surrogate pair"):
        tokenizer.encode("a\ud800")
