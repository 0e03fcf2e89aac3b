"""A checkpoint in safetensors, one file or several: which tensors it holds, and each of them on demand.

The files are memory-mapped: only what is used of a tensor is read, and nothing is copied on the way. (A safetensors
file is 8 bytes of header length, a JSON header of names, types, shapes and offsets, and the bytes. The `safetensors`
library checks all of it when it opens a file.)
"""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes  # noqa: F401  (its import teaches NumPy the name "bfloat16")
import numpy as np
from safetensors import SafetensorError, safe_open

from tiny_vllm.errors import UserError
from tiny_vllm.models.jsonfile import Settings, read_json

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


class Checkpoint:
    """shapes: {tensor name: its shape}, over all files of the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._bytes: dict[str, np.ndarray] = {}
        self._dtypes: dict[str, str] = {}
        for file in _files(folder):
            self._add(file)

    def _add(self, file: Path) -> None:
        try:
            with safe_open(file, framework="np") as opened:
                slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118  (no dict)
            data, offsets = _mapped(file)
        except (SafetensorError, OSError) as error:
            hint = "it is damaged or cut short, download it again"
            raise UserError(f"{file} cannot be read as safetensors ({error}); {hint}") from None
        twice = sorted(slices.keys() & self.shapes.keys())
        if twice:
            raise UserError(f"{file} holds {twice[0]}, and so does another file of {INDEX}; keep one")
        for name, part in slices.items():
            self.shapes[name] = tuple(part.get_shape())
            self._bytes[name] = data[slice(*offsets[name])]
            self._dtypes[name] = part.get_dtype()

    def check_dtypes(self, names: list[str]) -> None:
        for name in names:
            if self._dtypes[name] not in DTYPES:
                supported = f"supported: {', '.join(DTYPES)}"
                raise UserError(f"{self.folder}: {name} has the type {self._dtypes[name]}; {supported}")

    def read(self, name: str) -> np.ndarray:
        """One tensor as it is stored: bfloat16 (ml_dtypes), float16 or float32; a read-only view of the file."""
        return self._bytes[name].view(DTYPES[self._dtypes[name]]).reshape(self.shapes[name])


def _mapped(file: Path) -> tuple[np.ndarray, dict[str, tuple[int, int]]]:
    """The bytes behind the header, and where among them each tensor begins and ends."""
    everything = np.asarray(np.memmap(file, np.uint8, "r"))
    start = 8 + int(everything[:8].view(np.uint64)[0])
    header = json.loads(everything[8:start].tobytes())
    header.pop("__metadata__", None)
    return everything[start:], {name: tuple(entry["data_offsets"]) for name, entry in header.items()}


def _files(folder: Path) -> list[Path]:
    """The files to open: model.safetensors, else those that the index names."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give a model folder that holds {SINGLE}")
    if (folder / SINGLE).exists():
        return [folder / SINGLE]
    if not (folder / INDEX).exists():
        raise UserError(f"{folder} has neither {SINGLE} nor {INDEX}; other formats (.bin, .pth, .gguf) are not read")
    settings = Settings(folder / INDEX, read_json(folder / INDEX))
    weight_map = settings.section("weight_map")
    names = weight_map.data.values() if weight_map else []
    if not names or not all(isinstance(name, str) for name in names):
        raise settings.refuse("weight_map", "it should map tensor names to file names")
    files = [folder / name for name in sorted(set(names))]
    for name in names:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise UserError(f"{folder / INDEX} names {name}, which lies outside the folder; copy it in, and name that")
    for file in files:
        if not _is_file(file):
            raise UserError(f"{folder / INDEX} names {file.name}, which is not in the folder; download it too")
    return files


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False
