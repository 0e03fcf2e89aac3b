"""The chapter that a notebook works on: whose lines stand in its files, and which of them pass."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tiny_vllm.course import markers
from tiny_vllm.course.chapter import Chapter
from tiny_vllm.course.checking import ORDERS, Outcome, check_exercise
from tiny_vllm.course.compose import stand_ins
from tiny_vllm.course.files import read_source, write_atomic
from tiny_vllm.device.base import Device
from tiny_vllm.device.source import PACKAGE, checkout_root, load_source

YOURS, WORKED, STAND_IN = "yours", "the worked one", "a stand-in"


@dataclass(frozen=True)
class Text:
    """A file of the chapter with every region filled; owners: whose lines, by the exercise's id."""

    text: str
    owners: Mapping[str, str]


@dataclass(frozen=True)
class Lesson:
    """A chapter, the reader's folder `work` and the device that kernels run on."""

    chapter: Chapter
    work: Path
    device: Device
    outcomes: dict[str, Outcome] = field(default_factory=dict)  # by exercise and body: each is checked once
    _scratch: tempfile.TemporaryDirectory[str] = field(default_factory=tempfile.TemporaryDirectory)

    def own(self, file: str) -> Path:
        """Where the reader's file is, or would be."""
        return self.work / self.chapter.name / file

    def own_text(self, file: str) -> str:
        """The reader's file; where there is none, ours with its regions empty."""
        return read_source(self.own(file)) if self.own(file).is_file() else self._skeleton(file)

    def shown(self, file: str, empty: bool = False) -> str:
        """A file as a page may show it: with the reader's lines, or none, in its regions; never with ours."""
        if file in self.chapter.files:
            return self._skeleton(file) if empty else self.own_text(file)
        return read_source(self.chapter.folder / file)

    def own_body(self, exercise: str) -> str:
        """What the reader wrote for an exercise; empty where nothing is."""
        return _solved(self.own_text(self.chapter.exercise(exercise).file)).get(exercise, "")

    def check(self, exercise: str) -> Outcome:
        """The outcome of the public cases for the reader's lines; the same lines are run once."""
        body = markers.bodies(self.own_text(self.chapter.exercise(exercise).file)).get(exercise, "")
        key = f"{exercise} {hashlib.sha256(body.encode()).hexdigest()}"
        if key not in self.outcomes:
            orders = ORDERS if self.own_body(exercise) else ORDERS[:1]  # one failure says that nothing is there yet
            outcome = check_exercise(self.chapter, exercise, self.work, device=self.device.name, orders=orders)
            self.outcomes[key] = outcome
        return self.outcomes[key]

    def passes(self, exercise: str) -> bool:
        """Whether the reader solved it."""
        return bool(self.own_body(exercise)) and self.check(exercise).passed

    def filled(self, file: str, only_passing: bool = True) -> Text:
        """A file of the chapter: the reader's lines where they pass, else the worked ones, in a release stand-ins.

        only_passing=False: the reader's lines wherever there are some.
        """
        ours = read_source(self.chapter.folder / file)
        worked, theirs, spare = _solved(ours), _solved(self.own_text(file)), dict(stand_ins(self.chapter, ours))
        bodies, owners = {}, {}
        for each in markers.bodies(ours):
            choices = {YOURS: theirs, WORKED: worked, STAND_IN: spare}
            if only_passing and each in theirs and not self.passes(each):
                del choices[YOURS]
            owner = next((name for name, bodies in choices.items() if each in bodies), STAND_IN)
            bodies[each], owners[each] = choices[owner].get(each, ""), owner
        return Text(markers.fill(ours, bodies), owners)

    def write_filled(self) -> Path:
        """A folder like work/ in which every region of the chapter is filled, passing lines of the reader first."""
        for file in self.chapter.files:
            write_atomic(self._filled_folder / self.chapter.name / file, self.filled(file).text)
        return self._filled_folder

    def cuda(self, file: str, only_passing: bool = True) -> tuple[str, Mapping[str, str]]:
        """(text for RawKernel, owners) of one of the chapter's .cu files: "rms_norm.cu", "mutants/shared_sum.cu"."""
        kernels = (checkout_root() or PACKAGE) / "kernels"
        name, ours = f"{self.chapter.name}/{file}", self.chapter.folder.parent
        if file not in self.chapter.files:
            return load_source(name, (self.work, ours, kernels)), {}
        filled = self.filled(file, only_passing)
        write_atomic(self._filled_folder / name, filled.text)
        return load_source(name, (self._filled_folder, ours, kernels)), filled.owners

    def _skeleton(self, file: str) -> str:
        return markers.skeleton(read_source(self.chapter.folder / file), file.endswith(".py"))

    @property
    def _filled_folder(self) -> Path:
        return Path(self._scratch.name) / "work"  # messages name a file by its last folders


def _solved(text: str) -> dict[str, str]:
    """The bodies of the regions in which something is written."""
    return {each.id: each.body for each in markers.regions(text) if each.solved}
