"""`tiny-vllm doctor`: what this machine has and lacks, line by line, each with the command that mends it."""

from __future__ import annotations

import argparse
from typing import Any


def add_parser(commands: Any) -> None:
    """The options of `doctor`."""
    parser = commands.add_parser(
        "doctor",
        help="check this machine: compiler, GPU, CuPy, caches, model",
        description="Checks what tiny-vllm needs. Exit code 1 when something that is needed does not work.",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--report", action="store_true", help="print a block for a bug report, without names and homes")
    form.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Lines come as they are found; a report or JSON when all is known."""
    from tiny_vllm.doctor import Status, examine, report

    findings = []
    for finding in examine():
        findings.append(finding)
        if not (arguments.report or arguments.json):
            print(report.line(finding), flush=True)
    if arguments.report:
        print(report.as_markdown(findings))
    elif arguments.json:
        print(report.as_json(findings))
    else:
        print(report.verdict(findings))
    return int(any(finding.status is Status.PROBLEM for finding in findings))
