"""`tiny-vllm fetch`: get a model into the cache, so that later runs need no network."""

from __future__ import annotations

import argparse
from typing import Any

from tiny_vllm.cli_generate import DEFAULT_MODEL


def add_parser(commands: Any) -> None:
    """The options of `fetch`."""
    parser = commands.add_parser(
        "fetch",
        help="download a model into the cache",
        description="Downloads a model where it is not there yet, converts the built-in one, prints folder and size.",
    )
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", default=DEFAULT_MODEL, help=f"a hub id, or {DEFAULT_MODEL} (the default)"
    )
    parser.add_argument("--where", action="store_true", help="print where it is, or would be, and fetch nothing")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """stdout: the folder, a tab, the size; progress goes to stderr, and none is shown for a model that is there."""
    from tiny_vllm.models.find import find_model, folder_bytes
    from tiny_vllm.models.hub import resolve_model

    folder, there = find_model(arguments.model)
    if arguments.where:
        print(folder)
        return 0
    if not there:
        folder = resolve_model(arguments.model)
    print(f"{folder}\t{folder_bytes(folder) / 1e6:,.0f} MB")
    return 0
