"""Findings as lines for people, as JSON, and as a block for a bug report that names neither user nor home."""

from __future__ import annotations

import getpass
import json
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tiny_vllm import __version__
from tiny_vllm.doctor.finding import Finding, Status

SHOWN_VARIABLES = ("CUDA_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "CUPY_CACHE_DIR", "CONDA_PREFIX", "HF_HUB_OFFLINE")
_NAME_WIDTH = 13


def line(finding: Finding) -> str:
    """One line, and a second one with the command where there is one."""
    text = f"{finding.status.value:<8}{finding.check:<{_NAME_WIDTH}} {finding.sentence}"
    return f"{text}\n{'':<{8 + _NAME_WIDTH}} -> {finding.command}" if finding.command else text


def verdict(findings: Sequence[Finding]) -> str:
    problems = sum(finding.status is Status.PROBLEM for finding in findings)
    if problems == 0:
        return "What is needed to run is here."
    return f"{problems} problem{'s' * (problems > 1)}: the line below each one mends it."


def as_json(findings: Sequence[Finding]) -> str:
    rows = [
        {"check": each.check, "status": each.status.value, "sentence": each.sentence, "command": each.command}
        for each in findings
    ]
    healthy = all(each.status is not Status.PROBLEM for each in findings)
    return json.dumps({"version": __version__, "ok": healthy, "findings": rows}, ensure_ascii=False, indent=2)


def as_markdown(findings: Sequence[Finding]) -> str:
    """A block to paste into a bug report."""
    variables = [f"{name}={os.environ[name]}" for name in sorted(os.environ) if _is_shown(name)]
    head = f"tiny-vllm {__version__}, {platform.platform()}"
    lines = [head, *map(line, findings), verdict(findings), *variables]
    return "```text\n" + Privacy.of_this_user().clean("\n".join(lines)) + "\n```"


def _is_shown(name: str) -> bool:
    return name in SHOWN_VARIABLES or name.startswith("TINY_VLLM_")


@dataclass(frozen=True)
class Privacy:
    """What to take out of a text: home folders, and the user's name."""

    homes: tuple[str, ...]
    user: str

    @classmethod
    def of_this_user(cls) -> Privacy:
        try:
            home = Path.home()
            homes = sorted({str(home), str(home.resolve())}, key=len, reverse=True)
        except (RuntimeError, OSError):
            homes = []
        return cls(tuple(path for path in homes if len(Path(path).parts) > 1), _user())

    def clean(self, text: str) -> str:
        for home in self.homes:
            text = re.sub(rf"{re.escape(home)}(?![\w.-])", "~", text)
        text = re.sub(r"/(home|Users)/[^/\s:'\"]+", r"/\1/<user>", text)  # of other users, too
        if self.user:  # a folder such as /scratch/NAME
            text = re.sub(rf"(?<![\w.-]){re.escape(self.user)}(?![\w.-])", "<user>", text)
        return text


def _user() -> str:
    """Empty for root, whose name says nothing and stands in many sentences."""
    try:
        name = getpass.getuser()
    except Exception:  # a container's user without a name
        return ""
    return "" if name == "root" else name
