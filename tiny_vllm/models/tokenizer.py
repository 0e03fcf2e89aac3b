"""Text to token ids and back, as the model's own tokenizer.json has it; chats by the model's own template."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers.decoders import DecodeStream
from tokenizers.processors import TemplateProcessing

from tiny_vllm.errors import UserError
from tiny_vllm.models.chat_template import ChatTemplate, Messages, find_template
from tiny_vllm.models.jsonfile import read_json

# Hugging Face's Llama tokenizers obey add_bos_token whatever tokenizer.json says; for others, false means nothing.
LLAMA_CLASSES = ("LlamaTokenizer", "LlamaTokenizerFast")


class Tokenizer:
    """tokenizer.json with the special tokens and the chat template of tokenizer_config.json.

    bos_token, eos_token: texts or None; bos_token_id, eos_token_id: their ids or None.
    """

    def __init__(self, inner: tokenizers.Tokenizer, settings: dict[str, Any], folder: Path) -> None:
        self._inner, self._settings, self._folder = inner, settings, folder
        # A tokenizer.json may keep the truncation and padding of the day it was trained
        inner.no_truncation()
        inner.no_padding()
        self.special_tokens = _special_tokens(settings)
        self.bos_token = self.special_tokens.get("bos_token")
        self.eos_token = self.special_tokens.get("eos_token")
        self.bos_token_id = self._id(self.bos_token)
        self.eos_token_id = self._id(self.eos_token)
        self._set_bos()

    @classmethod
    def from_folder(cls, path: str | Path) -> Tokenizer:
        """Read tokenizer.json and, where there are, tokenizer_config.json and chat_template.jinja."""
        folder = Path(path)
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise UserError(f"{folder} has no tokenizer.json; copy it from where the checkpoint came from")
        try:
            inner = tokenizers.Tokenizer.from_file(str(file))
        except BaseException as error:  # the library raises plain Exception, and its panics are not even that
            _raise_unless_panic(error)
            raise UserError(f"{file} cannot be read as a tokenizer: {error}; download it again") from None
        config = folder / "tokenizer_config.json"
        return cls(inner, read_json(config) if config.exists() else {}, folder)

    @property
    def vocab_size(self) -> int:
        """How many tokens there are, added ones included; a model's embedding may have more rows."""
        return self._inner.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; special tokens spelled out in it are taken as such.

        add_special_tokens: with what the model wants around a text (for Llama, a BOS first).
        """
        if not isinstance(text, str):
            raise UserError(f"the prompt is {text!r:.60}; give a text, or token ids as a list of whole numbers")
        try:
            return self._inner.encode(text, add_special_tokens=add_special_tokens).ids
        except (UnicodeEncodeError, TypeError):
            raise UserError("the prompt holds half a surrogate pair, which is no character; remove it") from None
        except BaseException as error:
            _raise_unless_panic(error)
            file = self._folder / "tokenizer.json"
            raise UserError(f"{file} cannot encode this text: {error}; it is damaged, download it again") from None

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids; ids beyond the vocabulary give nothing, half a character gives U+FFFD.

        No clean-up of spaces before punctuation, whatever tokenizer_config.json says: it changes what was generated.
        """
        return self._inner.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def token(self, token_id: int) -> str:
        """The text of one token, special or not."""
        return self.decode([token_id], skip_special_tokens=False)

    def decode_stream(self, skip_special_tokens: bool = True) -> TextStream:
        return TextStream(self._inner, skip_special_tokens)

    def apply_chat_template(self, messages: Messages, add_generation_prompt: bool = True) -> str:
        """[{"role": ..., "content": ...}, ...] as the text that the model was trained on.

        add_generation_prompt: end with the opening of the assistant's answer.
        """
        if self._chat_template is None:
            raise UserError(f"{self._folder} has no chat template; give a prompt instead of messages")
        return self._chat_template.render(messages, add_generation_prompt)

    def encode_chat(self, messages: Messages) -> list[int]:
        """Token ids of a chat. The template spells out the BOS, so none is added: two would harm the answer."""
        return self.encode(self.apply_chat_template(messages), add_special_tokens=False)

    @cached_property
    def _chat_template(self) -> ChatTemplate | None:
        found = find_template(self._folder, self._settings)
        return ChatTemplate(*found, self.special_tokens) if found else None

    def _id(self, token: str | None) -> int | None:
        return None if token is None else self._inner.token_to_id(token)

    def _set_bos(self) -> None:
        """Let add_bos_token rule where Hugging Face lets it: true always, false for Llama's tokenizers."""
        wanted = self._settings.get("add_bos_token")
        added = self.bos_token_id in self.encode("")
        if wanted is True and not added:
            if self.bos_token_id is None:
                file = self._folder / "tokenizer_config.json"
                raise UserError(f"{file}: add_bos_token is true and bos_token {self.bos_token!r} is no token; name one")
            special = [(str(self.bos_token), self.bos_token_id)]
            self._inner.post_processor = TemplateProcessing(single=f"{self.bos_token}:0 $A:0", special_tokens=special)
        elif wanted is False and added and self._settings.get("tokenizer_class") in LLAMA_CLASSES:
            self._inner.post_processor = TemplateProcessing(single="$A:0", special_tokens=[])


class TextStream:
    """Text token by token: a character whose bytes come in several tokens is held back until it is whole."""

    def __init__(self, inner: tokenizers.Tokenizer, skip_special_tokens: bool) -> None:
        self._inner, self._stream = inner, DecodeStream(skip_special_tokens=skip_special_tokens)

    def step(self, token_id: int) -> str:
        """What this token adds; "" while a character is incomplete."""
        return self._stream.step(self._inner, token_id) or ""


def _raise_unless_panic(error: BaseException) -> None:
    """Ctrl-C and the like go on; a panic of Rust code has a class of its own, below BaseException only."""
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        raise error


def _special_tokens(settings: dict[str, Any]) -> dict[str, str]:
    """bos_token, eos_token, ...: each a text, or an object that holds it as content."""
    found = {}
    for key, value in settings.items():
        text = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(text, str):
            found[key] = text
    return found
