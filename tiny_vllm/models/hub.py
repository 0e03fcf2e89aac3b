"""From what a user calls a model to its folder: a local folder, the built-in model, or a Hugging Face hub id."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tiny_vllm.cache import expanded
from tiny_vllm.errors import UserError

BUILT_IN = "smollm2-135m"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
PATTERNS = ["*.safetensors", "*.json", "*.jinja"]
SUBFOLDERS = ["*/*"]  # other formats of the same weights lie there
WITHOUT_HUB = f"give a local model folder, or the built-in model {BUILT_IN}"


def resolve_model(name_or_path: str | Path) -> Path:
    """The folder of a model, downloaded first where that is needed (and kept in the Hugging Face cache).

    name_or_path: an existing folder, "smollm2-135m", or a hub id such as "org/name", for which HF_TOKEN and
    HF_HUB_OFFLINE hold. UserError says which of these it is not, or why a download failed.
    """
    name = str(name_or_path)
    folder = expanded(name)
    if name and _is(Path.is_dir, folder):
        return folder
    if name == BUILT_IN:
        from tiny_vllm.models.smollm2 import ensure_smollm2

        return ensure_smollm2()
    if _is(Path.is_file, folder):
        raise UserError(f"{name} is a file; give the folder that holds config.json and the safetensors files")
    if isinstance(name_or_path, Path) or not HUB_ID.fullmatch(name):
        raise UserError(f"{name!r:.200} is neither a folder nor a hub id such as org/name; {WITHOUT_HUB}")
    return _download(name)


def _is(test: Callable[[Path], bool], path: Path) -> bool:
    try:
        return test(path)
    except OSError:  # a name longer than a file can have
        return False


def _download(hub_id: str) -> Path:
    import huggingface_hub
    from huggingface_hub import errors

    page = f"https://huggingface.co/{hub_id}"
    try:
        found = huggingface_hub.snapshot_download(hub_id, allow_patterns=PATTERNS, ignore_patterns=SUBFOLDERS)
    except errors.GatedRepoError:
        raise UserError(f"{hub_id} is gated; accept its licence at {page} and set HF_TOKEN to your token") from None
    except errors.RepositoryNotFoundError:
        raise UserError(
            f"{hub_id} is neither a folder here nor a model at {page}; if it is private, set HF_TOKEN"
        ) from None
    except errors.HFValidationError as error:
        raise UserError(f"{hub_id!r} is neither a folder nor a hub id ({_one_line(error)}); {WITHOUT_HUB}") from None
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, ConnectionError, TimeoutError):
        why = "it is not in the local cache, and the hub is out of reach or HF_HUB_OFFLINE is set"
        raise UserError(f"{hub_id} cannot be downloaded: {why}; {WITHOUT_HUB}") from None
    except Exception as error:  # the hub's client raises its own transport's errors, which change with its version
        raise UserError(f"{hub_id} cannot be downloaded: {_one_line(error)}; try again, or {WITHOUT_HUB}") from None
    folder = Path(found)
    if not any(folder.glob("*.safetensors")):
        raise UserError(f"{page} holds no safetensors files; give a model that does (.bin and .gguf are not read)")
    return folder


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
