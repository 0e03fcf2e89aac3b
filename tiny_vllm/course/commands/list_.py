"""`tiny-vllm course list`: the chapters with exercises."""

from __future__ import annotations

import argparse
from typing import Any

from tiny_vllm.course.chapter import chapters


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("list", help="the chapters, their exercises and minutes")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    for chapter in chapters():
        points = sum(each.points for each in chapter.exercises)
        needs = f", after {', '.join(map(str, chapter.needs))}" if chapter.needs else ""
        print(f"{chapter.number:>2}  {chapter.title}")
        print(f"    {len(chapter.exercises)} exercises, {points} points, about {chapter.minutes} minutes{needs}")
    print("next: tiny-vllm course start NUMBER")
    return 0
