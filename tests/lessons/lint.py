"""What can be counted of a lesson's rules: each rule a function from a Lesson to the sentences that say what breaks it.

A lesson is a chapter's README.md in jupytext's plain Markdown. A text block behind a code cell is that cell's output.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jupytext

SESSION, CELLS, WORDS = 90, (24, 40), (900, 1800)  # minutes, and what a session of them holds
LONGEST_CELL, LONGEST_CODE, LONGEST_SENTENCE, MEDIAN_SENTENCE, LONGEST_VLLM = 110, 15, 35, 18, 80
PREDICTIONS, QUESTIONS, LISTED = 3, 2, 0.15  # LISTED: the share of lines that may be list items
LABELS = "background|conclusion|example|exercises?|introduction|notes?|overview|setup|summary|theory|implementation"
FILLER = (
    r"in this (chapter|lesson|section|notebook) we|let's|let us|dive|diving|explore|journey|leverage\w*|powerful"
    r"|crucial|essential\w*|seamless\w*|robust|under the hood|it is important to note|simply|just|easy|easily|obviously"
    r"|not only\b.*\bbut"
)
SPEED = r"\d\s*(ms|us|µs|ns|GB/s|TB/s|[GT]FLOP/s|tokens/s)\b|\btimes (as fast|faster|slower)\b"
CUDA_C = r"__global__|__device__|__shared__|^```(c|cpp|c\+\+|cuda)\b"
MARKS = re.compile("(?<=\\w)!(?=\\s|$)|[\U0001f300-\U0001faff\u2600-\u27bf]")


@dataclass(frozen=True)
class Lesson:
    """minutes: of the session. page: README.md whole. cells: (markdown or code, source), outputs left out."""

    path: Path
    minutes: int
    page: str
    cells: tuple[tuple[str, str], ...]

    @classmethod
    def read(cls, path: Path, minutes: int) -> Lesson:
        page = path.read_text(encoding="utf-8")
        shown = re.sub(r"(?m)^```text\n.*?^```$\n?", "", page, flags=re.DOTALL)
        found = [(cell.cell_type, cell.source.strip()) for cell in jupytext.reads(shown, fmt="md").cells]
        return cls(path, minutes, page, tuple(each for each in found if each[1]))

    def of(self, kind: str) -> list[tuple[int, str]]:
        return [(number, source) for number, (cell, source) in enumerate(self.cells) if cell == kind]

    @property
    def prose(self) -> list[tuple[int, str]]:
        """What is read as sentences: no code, table, formula, heading or picture."""
        return [(number, _prose(source)) for number, source in self.of("markdown")]


def _prose(source: str) -> str:
    source = re.sub(r"```.*?```|<[^>]+>", " ", source, flags=re.DOTALL)
    lines = [line for line in source.splitlines() if not re.match(r"\s*(\||#|!\[|\$\$)", line)]
    return re.sub(r"[*_`>]", "", re.sub(r"\$[^$]*\$|`[^`]*`", "x", "\n".join(lines)))


def words(text: str) -> list[str]:
    return re.findall(r"[^\W_][\w'\u2019-]*", text)


def sentences(text: str) -> list[str]:
    parts = re.split(r"(?<=[.?:])\s+(?=[A-Z\"'(])|\n\s*\n|\n\s*[-*\d]+[.)]?\s", text)
    return [part for part in parts if words(part)]


def density(lesson: Lesson) -> Iterator[str]:
    share = lesson.minutes / SESSION
    for what, count, (low, high) in (
        ("cells", len(lesson.cells), CELLS),
        ("words", sum(len(words(text)) for _, text in lesson.prose), WORDS),
    ):
        if not low * share <= count <= high * share:
            yield f"{count} {what}; {lesson.minutes} minutes take {low * share:.0f} to {high * share:.0f}"
    for number, text in lesson.prose:
        if (count := len(words(text))) > LONGEST_CELL:
            yield f"cell {number} has {count} words; at most {LONGEST_CELL}"


def sentence_lengths(lesson: Lesson) -> Iterator[str]:
    found = [(len(words(each)), each) for _, text in lesson.prose for each in sentences(text)]
    for count, sentence in found:
        if count > LONGEST_SENTENCE:
            yield f"a sentence of {count} words, at most {LONGEST_SENTENCE}: {sentence.strip()[:60]!r}"
    if found and (middle := statistics.median(count for count, _ in found)) > MEDIAN_SENTENCE:
        yield f"sentences have {middle:g} words in the median; at most {MEDIAN_SENTENCE}"


def no_filler(lesson: Lesson) -> Iterator[str]:
    for number, text in lesson.prose:
        for match in re.finditer(rf"(?i)\b({FILLER})\b", text):
            yield f"cell {number}: {match[0]!r} is filler"
        for mark in MARKS.findall(text):
            yield f"cell {number}: {mark!r}; no exclamation marks, no emoji"


def few_lists(lesson: Lesson) -> Iterator[str]:
    lines = [line for _, text in lesson.prose for line in text.splitlines() if line.strip()]
    listed = sum(bool(re.match(r"\s*([-*+]|\d+[.)])\s", line)) for line in lines)
    if lines and listed / len(lines) > LISTED:
        yield f"{listed} of {len(lines)} lines of text are list items; write sentences"


def headings_claim_or_ask(lesson: Lesson) -> Iterator[str]:
    for heading in re.findall(r"(?m)^#{2,}\s+(.+)$", "\n".join(source for _, source in lesson.of("markdown"))):
        if len(words(heading)) < 3 or re.fullmatch(rf"(?i)({LABELS})\W*", heading):
            yield f"the heading {heading!r} is a label; let it claim or ask something"


def damage_comes_first(lesson: Lesson) -> Iterator[str]:
    headings = (number for number, source in lesson.of("markdown") if re.search(r"(?m)^## ", source))
    first = next(headings, len(lesson.cells))
    if sum(number < first for number, _ in lesson.of("code")) < 2:
        yield "no cell behind the set-up runs before the first ## heading; open with the damage"


def text_is_no_proof(lesson: Lesson) -> Iterator[str]:
    if _number(lesson) >= 2 and "logits within 1e-3: True" not in lesson.page:
        yield "no compared cell prints `logits within 1e-3: True`"


def predict_then_run(lesson: Lesson) -> Iterator[str]:
    if (count := sum(source.count("predict(") for _, source in lesson.of("code"))) < PREDICTIONS:
        yield f"{count} predictions; at least {PREDICTIONS}"


def the_trap_is_run(lesson: Lesson) -> Iterator[str]:
    if not any("check=True" in source for _, source in lesson.of("code")):
        yield "no cell runs a broken kernel with check=True"


def exercises_come_early(lesson: Lesson) -> Iterator[str]:
    found = [number for number, source in lesson.of("code") if source.startswith("%%exercise")]
    if not found or found[0] > len(lesson.cells) / 3:
        yield "the first exercise stands behind the first third of the page"


def code_by_reference(lesson: Lesson) -> Iterator[str]:
    for number, source in lesson.of("code"):
        if not source.startswith("%%exercise") and (count := len(source.splitlines())) > LONGEST_CODE:
            yield f"cell {number} has {count} lines of code; at most {LONGEST_CODE}"
    for number, source in lesson.of("markdown"):
        if re.search(CUDA_C, source, re.MULTILINE) and "```" in source:
            yield f"cell {number} quotes CUDA C; show it from its file by source()"


def pictures_before_formulas(lesson: Lesson) -> Iterator[str]:
    picture, formula = lesson.page.find("!["), re.search(r"\$[^$\n]+\$", lesson.page)
    if picture < 0:
        yield "the page has no picture"
    elif formula and formula.start() < picture:
        yield "the first formula stands before the first picture"
    for told, target in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", lesson.page):
        if not (lesson.path.parent / target).is_file():
            yield f"the picture {target} is not there"
        if len(words(told)) < 3:
            yield f"the words of {target} are {told!r}; say what it shows"


def speed_has_a_row(lesson: Lesson) -> Iterator[str]:
    for number, text in lesson.of("markdown"):
        if (match := re.search(SPEED, text)) and "docs/performance.md" not in text:
            yield f"cell {number} says {match[0]!r}; cite its row of docs/performance.md"


def ends_with_vllm_and_questions(lesson: Lesson) -> Iterator[str]:
    about = re.search(r"(?ms)^## What vLLM does.*?$(.*?)(?=^## |\Z)", lesson.page)
    if about is None:
        yield "no section `What vLLM does …`"
    elif (count := len(words(_prose(about[1])))) > LONGEST_VLLM:
        yield f"the section on vLLM has {count} words; at most {LONGEST_VLLM}"
    if len(set(re.findall(r"\bW\d\b", lesson.page))) < QUESTIONS:
        yield f"fewer than {QUESTIONS} written questions (W1, W2)"


def _number(lesson: Lesson) -> int:
    match = re.match(r"ch(\d\d)_", lesson.path.parent.name)
    return int(match[1]) if match else 99


RULES = (
    density,
    sentence_lengths,
    no_filler,
    few_lists,
    headings_claim_or_ask,
    damage_comes_first,
    text_is_no_proof,
    predict_then_run,
    the_trap_is_run,
    exercises_come_early,
    code_by_reference,
    pictures_before_formulas,
    speed_has_a_row,
    ends_with_vllm_and_questions,
)
