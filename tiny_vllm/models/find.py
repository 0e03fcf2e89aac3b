"""Where a model is, or would be, without fetching anything."""

from __future__ import annotations

import json
from pathlib import Path

from tiny_vllm.models.hub import BUILT_IN, HUB_ID, resolve_model
from tiny_vllm.models.smollm2 import find_smollm2


def find_model(name: str) -> tuple[Path, bool]:
    """-> (the model's folder, whether it is there whole). Names and UserError as resolve_model's."""
    if name == BUILT_IN and not Path(name).is_dir():
        return find_smollm2()
    if HUB_ID.fullmatch(name) and not Path(name).is_dir():
        return _in_hub_cache(name)
    folder = resolve_model(name)  # a local folder, or the error that says what it is not
    return folder, _is_whole(folder)


def folder_bytes(folder: Path) -> int:
    """Bytes of the files of a model's folder; the hub's cache keeps them elsewhere and links to them."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _in_hub_cache(hub_id: str) -> tuple[Path, bool]:
    import huggingface_hub
    from huggingface_hub import constants, errors

    try:
        folder = Path(huggingface_hub.snapshot_download(hub_id, local_files_only=True))
    except (errors.LocalEntryNotFoundError, errors.HFValidationError):
        return Path(constants.HF_HUB_CACHE) / f"models--{hub_id.replace('/', '--')}", False
    return folder, _is_whole(folder)


def _is_whole(folder: Path) -> bool:
    """config.json is there and every safetensors file; a download that was interrupted lacks some."""
    index = folder / "model.safetensors.index.json"
    try:
        files = set(json.loads(index.read_text())["weight_map"].values()) if index.is_file() else {"model.safetensors"}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return all((folder / name).is_file() for name in ("config.json", *files))
