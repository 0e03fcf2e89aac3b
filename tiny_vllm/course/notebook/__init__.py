"""What the cells of a chapter's notebook call. Every function prints plain text; pictures are PNGs with alt text.

A notebook begins with `from tiny_vllm.course.notebook import *` and `chapter(3)`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tiny_vllm.course import chapter as chapters
from tiny_vllm.course import import_chapters, state
from tiny_vllm.course.commands.start import start
from tiny_vllm.course.failure import report
from tiny_vllm.course.faults import check_answer
from tiny_vllm.course.files import work_folder
from tiny_vllm.course.markers import regions
from tiny_vllm.course.notebook import pictures, shell
from tiny_vllm.course.notebook.cells import parse_line, write_cell
from tiny_vllm.course.notebook.cuda_text import function
from tiny_vllm.course.notebook.current import CURRENT
from tiny_vllm.course.notebook.launch import VALUES_ONLY, Dim, Run, as_tuple, on_device, options_for, run_kernel
from tiny_vllm.course.notebook.lesson import Lesson
from tiny_vllm.course.notebook.own_op import OwnOp, own_op
from tiny_vllm.course.notebook.real_model import TOLERANCE, RealModel, load_model, replaced
from tiny_vllm.course.notebook.source import difference, excerpt
from tiny_vllm.course.notebook.trace import run_traced, traced
from tiny_vllm.course.results import record_fault
from tiny_vllm.device import get_device
from tiny_vllm.errors import UserError

__all__ = [
    "answer",
    "chapter",
    "check",
    "compare",
    "launch",
    "mine",
    "predict",
    "show",
    "smollm2",
    "source",
    "swap",
    "trace",
]

PROMPT = "The capital of France is"


def chapter(number: int) -> None:
    """Open a chapter: write its skeletons where there are none yet, make `import chapters...` work, say where we are.

    UserError for a chapter that does not exist.
    """
    found, work, device = chapters.chapter(number), work_folder(), get_device()
    start(found, work)
    import_chapters()
    CURRENT.opened = Lesson(found, work, device)
    shell.set_up(exercise)
    print(f"chapter {found.number}: {found.title}\nkernels run on: {device.description}")
    print(f"your files: {work.name}/{found.name}/")
    if device.name != "emulator":
        print(f"launch and check look at {VALUES_ONLY}")


def exercise(line: str, cell: str) -> None:
    """%%exercise 3.2: write the cell's lines between that exercise's marks in work/, and check them.

    %%exercise 3.2 --take-file brings the file's lines into the notebook, --force overwrites them. Without either, lines
    that changed in the file since are never overwritten: both versions are printed.
    """
    name, way = parse_line(line)
    told = write_cell(CURRENT.of(name), name, cell, way)
    if told is None:
        check(name)
    elif told.startswith("%%exercise"):
        shell.next_cell(told)
    else:
        print(told, end="")


def check(exercise: str) -> None:
    """Run the exercise's cases on your lines and print what comes out: `3.2: passed`, or the first failure."""
    outcome = CURRENT.of(exercise).check(exercise)
    print(f"{exercise}: passed" if outcome.passed else report(outcome))


def mine(exercise: str) -> OwnOp:
    """The exercise as an operation on NumPy arrays: yours if it passes, else the worked one; prints which.

    In a release, which holds no answers, NumPy's stands in for the worked one.
    """
    op = own_op(CURRENT.of(exercise), exercise)
    print(f"{op.name} of exercise {exercise}: {op.owner}")
    return op


def predict(id: str, question: str, mine: Any = ...) -> None:
    """A question to answer before the cell that shows it: put your number in place of the dots in mine=...

    It is kept, compared by compare(id, value), and never graded.
    """
    lesson = CURRENT.of(id)
    if mine is not ...:
        with state.changing(lesson.work) as notes:
            notes.predictions[id] = mine
    typed = state.load(lesson.work).predictions.get(id)
    print(f"{id}  {question}\n     your prediction: {'none yet; type it at mine=' if typed is None else typed}")


def compare(id: str, value: Any) -> None:
    """Print what it is, beside what was predicted."""
    typed = state.load(CURRENT.of(id).work).predictions.get(id)
    print(f"{id}: it is {value}" if typed is None else f"{id}: you said {typed}, it is {value}")


def answer(exercise: str, line: Any = ..., kind: Any = ..., repair: Any = ..., repair_after: bool = False) -> None:
    """Answer a find-the-fault exercise: the line, what check mode calls the fault, and the text that repairs it.

    kind: "race", "barrier", "out of bounds" ... repair: what stands instead of that line; with repair_after=True,
    behind it.
    """
    lesson = CURRENT.of(exercise)
    if ... in (line, kind, repair):
        print(f"exercise {exercise}: not answered yet; put a line, a kind and a repair in place of the dots")
        return
    if not (isinstance(line, int) and isinstance(kind, str) and isinstance(repair, str)):
        raise UserError(f"exercise {exercise}: line is a number such as 12, kind and repair are texts in quotes")
    given = {"line": line, "kind": kind, "repair": repair, "repair_after": repair_after}
    outcome = check_answer(lesson.chapter, exercise, line, kind, repair, repair_after=repair_after)
    kept = record_fault(lesson.work, outcome, given, new=True)
    print(f"{exercise}: passed" if outcome.passed else report(outcome), *filter(None, [kept]), sep="\n  ")


def show(figure: Any) -> None:
    """Draw a figure of the chapter (chapters/_figures.py), and print the sentence that it shows."""
    pictures.display(figure)
    print(figure.sentence)


def source(file: str, name: str | None = None, diff_from: str | None = None, empty: bool = False) -> None:
    """Print a file of the chapter or one function of it; with diff_from, what changes from that function to this one.

    Regions show your own lines, or the marks alone; never the answer. empty: the marks alone, whatever you wrote.
    "tree" finds rms_norm_tree.
    """
    text, python = CURRENT.lesson.shown(file, empty), file.endswith(".py")
    shown = excerpt(text, name, python)
    if diff_from is not None:
        shown = difference(excerpt(text, diff_from, python), shown, diff_from, name or file)
    print(shown)


def launch(
    file: str,
    kernel: str,
    grid: Dim,
    block: Dim,
    args: list[Any],
    check: bool | None = None,
    count: bool = False,
    device: str | None = None,
    shared_mem: int = 0,
) -> Run:
    """Launch a kernel of the chapter's folder in a process of its own, and print what check mode finds.

    file: "faults/shared_sum.cu"; your lines stand in it where you wrote some. args: NumPy arrays (copied) and numbers.
    check: left out, check mode where the device has one; True says so where it has none. count: counters of the launch,
    in .report; they are taken of your lines where these pass. device: "emulator" where the answer must not depend on a
    GPU.
    """
    lesson = CURRENT.lesson
    where = lesson.device if device is None else get_device(device)
    code, _ = lesson.cuda(file, only_passing=count)
    options = options_for(args)
    if check and where.name != "emulator":
        print(VALUES_ONLY)
    settings: dict[str, Any] = {"count": count, "shared_mem": shared_mem, "options": options}
    run = run_kernel(where, code, kernel, grid, block, args, check=check is not False, **settings)
    for finding in run.findings:
        print(finding)
    return run


def trace(
    file: str, kernel: str, array: str, grid: Dim, block: Dim, args: list[Any], shared_mem: int = 0
) -> np.ndarray | None:
    """What a shared array holds at each barrier: (barriers, threads) float32, for the threads of block 0.

    Your lines run where they pass, else the worked ones. A thread that has no element of the array shows NaN. In a
    release, which has no worked lines, a kernel whose exercise is not solved gives None and a line that names it.
    """
    lesson = CURRENT.lesson
    code, _ = lesson.cuda(file)
    if gap := next((each.id for each in regions(function(code, kernel).text(code)) if not each.solved), None):
        print(f"solve {gap} first: there is nothing in {kernel} to trace yet")
        return None
    options, passed = options_for(args), on_device(lesson.device, args)
    new = traced(code, kernel, array)
    return run_traced(lesson.device, new, kernel, as_tuple(grid), as_tuple(block), passed, options, shared_mem)


def smollm2() -> RealModel:
    """The real model, float32 on NumPy: .config, .weights, .tokenizer, .ops, .logits(ids), .generate(ids, count)."""
    return load_model()


def swap(prompt: str = PROMPT, tokens: int = 6, **primitives: Any) -> None:
    """Run the real model with some operations replaced, swap(rms_norm=mine("3.3")), and compare its last logits.

    Text proves nothing; `logits within 1e-3: True` does. Then it speaks, `tokens` tokens.
    """
    model = load_model()
    ids, ops = model.tokenizer.encode(prompt), replaced(model.ops, **primitives)
    steps = list(model.steps(ids, max(tokens, 1), ops))
    apart = np.abs(steps[0] - model.logits(ids)).max()
    print(f"logits within 1e-3: {bool(apart <= TOLERANCE)}")
    if tokens:
        print(f"{prompt!r} -> {model.text([int(logits.argmax()) for logits in steps])!r}")
