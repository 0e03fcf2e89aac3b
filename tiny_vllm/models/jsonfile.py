"""Reading a JSON file of settings: a mistake in it becomes one sentence with the file, the key and the value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tiny_vllm.errors import UserError

_REQUIRED: Any = object()
LARGEST_INT = 2**31 - 1  # kernels count in int32
FLOAT32 = (1.2e-38, 3.4e38)  # and compute in float32: outside, a number becomes 0 or inf


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file; UserError where it is absent, unreadable, not JSON or not an object."""
    try:
        data = json.loads(file.read_text(encoding="utf-8-sig"))  # some editors of Windows put a mark in front
    except FileNotFoundError:
        raise UserError(f"{file.parent} has no {file.name}; give a model folder in the Hugging Face layout") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{file} is not JSON at line {error.lineno}, column {error.colno}: {error.msg}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file} cannot be read as JSON: {error}") from None
    if not isinstance(data, dict):
        raise UserError(f"{file} holds a {type(data).__name__}; it should hold a JSON object")
    return data


class Settings:
    """The keys of one JSON object, each read with its type and bounds. A key that holds null counts as absent."""

    def __init__(self, file: Path, data: dict[str, Any], prefix: str = "") -> None:
        self.file, self.data, self.prefix = file, data, prefix

    def refuse(self, key: str, supported: str) -> UserError:
        """The error for a value that is not taken: file, key, value (as JSON, at most 80 characters), what would be."""
        value = json.dumps(self.data.get(key), ensure_ascii=False)
        return UserError(f"{self.file}: {self.prefix}{key} is {value:.80}; {supported}")

    def value(self, key: str, default: Any = _REQUIRED) -> Any:
        found = self.data.get(key)
        if found is not None:
            return found
        if default is _REQUIRED:
            raise UserError(f"{self.file} has no {self.prefix}{key}; a Llama model needs it")
        return default

    def integer(self, key: str, default: Any = _REQUIRED, low: int = 1, high: int = LARGEST_INT) -> Any:
        value = self.value(key, default)
        if value is default or (type(value) is int and low <= value <= high):
            return value
        above = f" and at most {high}" if type(value) is int and value > high else ""
        raise self.refuse(key, f"it should be a whole number of at least {low}{above}")

    def number(self, key: str, default: Any = _REQUIRED) -> Any:
        value = self.value(key, default)
        if value is default:
            return value
        if type(value) in (int, float) and FLOAT32[0] <= value <= FLOAT32[1]:
            return float(value)
        raise self.refuse(key, "it should be a finite number above 0, within float32")

    def flag(self, key: str, default: bool) -> bool:
        value = self.value(key, default)
        if type(value) is bool:
            return value
        raise self.refuse(key, "it should be true or false")

    def section(self, key: str) -> Settings | None:
        """The object under a key, or None where there is none."""
        value = self.value(key, None)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.refuse(key, "it should be an object or null")
        return Settings(self.file, value, f"{self.prefix}{key}.")
