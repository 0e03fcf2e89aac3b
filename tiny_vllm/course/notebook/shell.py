"""The notebook's shell: the `%%exercise` magic, and a mistake told in one sentence instead of a traceback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tiny_vllm.errors import KernelError, UserError


def set_up(exercise: Callable[[str, str], None]) -> None:
    """Register %%exercise; outside of a notebook there is nothing to do."""
    if (shell := _shell()) is not None:
        shell.register_magic_function(exercise, "cell", "exercise")
        shell.set_custom_exc((UserError, KernelError), _one_sentence)


def next_cell(text: str) -> None:
    """Offer a new cell with this text, which stands below the one that runs; elsewhere print it."""
    shell = _shell()
    if shell is None:
        print(text)
    else:
        shell.set_next_input(text, replace=True)


def _one_sentence(
    shell: Any, kind: type[BaseException], error: BaseException, trace: Any, tb_offset: Any = None
) -> Any:
    """IPython's handler of an exception. It shows it itself, as the traceback of one line: nbval sees an error too."""
    shell._showtraceback(kind, error, [f"{kind.__name__}: {error}"])


def _shell() -> Any:
    try:
        from IPython import get_ipython
    except ImportError:
        return None
    return get_ipython()
