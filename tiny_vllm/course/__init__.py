"""The course beside the engine. The one place that reaches into chapters/, and it does so by path."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from tiny_vllm.device.base import Device
from tiny_vllm.device.source import checkout_root
from tiny_vllm.errors import UserError
from tiny_vllm.ops.base import Ops

LAST_STAGE = "chapters.ch14_paged_attention.stage"


def load_course_ops(device: Device, config: Any, dtype: Any) -> Ops:
    """The course's set of operations: the plain kernels of chapters 02 to 14, in the finished engine.

    UserError where the package was installed without its checkout, which is where the chapters are.
    """
    import_chapters()
    need_all_chapters()
    return importlib.import_module(LAST_STAGE).PagedAttentionOps(device, config, dtype)


def need_all_chapters() -> None:
    """UserError where the model cannot run on the course's kernels, for want of some chapters."""
    if not (chapters_folder() / LAST_STAGE.split(".")[1]).is_dir():
        raise UserError("this is a release with some of the chapters only; run with --ops reference")


def chapters_folder() -> Path:
    """chapters/ of the checkout that this package runs from; UserError when there is none."""
    root = checkout_root()
    if root is None or not (root / "chapters" / "__init__.py").is_file():
        raise UserError(
            "the course's kernels are not in the installed package; "
            "clone the repository, run `pip install -e .` in it, and try again"
        )
    return root / "chapters"


def import_chapters() -> None:
    """Make `import chapters` mean the checkout's, wherever Python was started from."""
    folder = chapters_folder()
    file, loaded = folder / "__init__.py", sys.modules.get("chapters")
    if loaded is not None:
        if Path(str(loaded.__file__)).resolve() != file.resolve():
            raise UserError(f"another package named chapters is loaded, from {loaded.__file__}; run without it")
        return
    load_file("chapters", file, [str(folder)])


def load_file(name: str, file: Path, folders: list[str] | None = None) -> ModuleType:
    """The module that the file holds, as sys.modules[name]; folders: of a package."""
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=folders)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
