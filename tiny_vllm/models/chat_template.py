"""A chat as a model was trained to read it: the Jinja template beside its tokenizer, run as Hugging Face runs it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tiny_vllm.errors import UserError

Messages = Sequence[Mapping[str, Any]]
MAX_CHARACTERS = 10_000_000  # of a chat: a text that no model's context holds, and no tokenizer reads in a second


class ChatTemplate:
    """source: the template's text; where: its file, for errors; variables: bos_token, eos_token and the like."""

    def __init__(self, source: str, where: Path, variables: Mapping[str, str]) -> None:
        self.where, self.variables = where, dict(variables)
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise UserError(f"{where}: the chat template is wrong at line {error.lineno}: {error.message}") from None
        except Exception as error:  # what Python finds wrong with the code that Jinja makes of it
            raise UserError(f"{where}: the chat template is wrong: {error}; correct it") from None

    def render(self, messages: Messages, add_generation_prompt: bool = True) -> str:
        """The chat as text, special tokens spelled out; UserError for messages that are ill-formed or refused."""
        check_messages(messages)
        try:
            text = self._template.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **self.variables,
            )
        except Exception as error:  # a template is a program: anything may come out of it
            reason = str(error) or type(error).__name__
            raise UserError(f"{self.where}: the chat template refuses these messages: {reason}") from None
        if len(text) > MAX_CHARACTERS:
            limit = f"the limit is {MAX_CHARACTERS:,}; shorten the messages, or correct the template"
            raise UserError(f"{self.where}: the chat template makes {len(text):,} characters of them; {limit}")
        return text


def find_template(folder: Path, settings: Mapping[str, Any]) -> tuple[str, Path] | None:
    """(source, file) of a folder's template: chat_template.jinja, else tokenizer_config.json's, else None.

    A list of named templates gives the one called "default", or the only one.
    """
    file = folder / "chat_template.jinja"
    if file.exists():
        return _read(file), file
    source, file = settings.get("chat_template"), folder / "tokenizer_config.json"
    if isinstance(source, list):
        source = _default(source, file)
    if source is None:
        return None
    if not isinstance(source, str):
        raise UserError(f"{file}: chat_template is {source!r:.60}; it should be a text or a list of named templates")
    return source, file


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read: {error}; download it again") from None


def check_messages(messages: Messages) -> None:
    """Each message is an object with a role and a content, both texts."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence) or not messages:
        raise UserError(f'messages is {messages!r:.60}; give a list such as [{{"role": "user", "content": "Hello"}}]')
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise UserError(f'messages[{index}] is {message!r:.60}; give {{"role": ..., "content": ...}}')
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                raise UserError(f"messages[{index}] has {message.get(key)!r:.60} as its {key}; give a text")


def _default(named: list[Any], file: Path) -> Any:
    templates = {str(item.get("name")): item.get("template") for item in named if isinstance(item, dict)}
    if len(templates) == 1:
        return next(iter(templates.values()))
    if "default" not in templates:
        raise UserError(f"{file}: chat_template names {sorted(templates)}; one should be called default")
    return templates["default"]


class _Generation(Extension):
    """`{% generation %}` marks, for training, what the assistant says; here it is its body and no more."""

    tags = {"generation"}  # noqa: RUF012  (Jinja's own class attribute)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@cache
def _environment() -> ImmutableSandboxedEnvironment:
    """Hugging Face's settings: templates rely on them for their blank lines."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is; Jinja's own filter escapes <, > and & for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
