"""`tiny-vllm course list`: the chapters, their exercises and minutes."""

from __future__ import annotations

import argparse

from tiny_vllm.course.chapter import chapters


def run(arguments: argparse.Namespace) -> int:
    for chapter in chapters():
        points = sum(each.points for each in chapter.exercises)
        needs = f", after {', '.join(map(str, chapter.needs))}" if chapter.needs else ""
        print(f"{chapter.number:>2}  {chapter.title}")
        print(f"    {len(chapter.exercises)} exercises, {points} points, about {chapter.minutes} minutes{needs}")
    print("next: tiny-vllm course start NUMBER")
    return 0
