"""The rows of the table: what every contender is asked to do, and in which unit the answer counts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from tiny_vllm.bench.workload import TOP_ID, Workload, nano_vllm, uniform
from tiny_vllm.errors import UserError

WRITTEN = re.compile(r"(decode|prefill|first-token):(?:(\d+)x)?(\d+)(?:\+(\d+))?|(nano-vllm):(\d+)")
WAYS = "decode:8x128+256, prefill:32x2000, first-token:4000, nano-vllm:256"


@dataclass(frozen=True)
class Kind:
    """unit of a row's figure; scale: units in a second, for a time; higher_is_better: the figure is a rate."""

    unit: str
    scale: float
    higher_is_better: bool
    temperature: float = 0.0


KINDS = {
    "decode": Kind("ms a step", 1e3, False),
    "first-token": Kind("ms", 1e3, False),
    "prefill": Kind("tokens/s", 1, True),
    "nano-vllm": Kind("output tokens/s", 1, True, temperature=0.6),
    "start": Kind("s", 1, False),
}


@dataclass(frozen=True)
class TableRow:
    """requests prompts of input_len tokens, each answered with output_len; of nano-vllm only the number counts."""

    name: str
    kind: str
    requests: int = 1
    input_len: int = 16
    output_len: int = 1

    @property
    def unit(self) -> str:
        return KINDS[self.kind].unit

    @property
    def higher_is_better(self) -> bool:
        return KINDS[self.kind].higher_is_better

    @cached_property
    def lengths(self) -> tuple[tuple[int, int], ...]:
        """(prompt, answer) of every request."""
        if self.kind != "nano-vllm":
            return ((self.input_len, self.output_len),) * self.requests
        work = nano_vllm(self.requests)
        return tuple((len(prompt), length) for prompt, length in zip(work.prompts, work.output_lens))

    @property
    def title(self) -> str:
        """For a reader."""
        return {
            "decode": f"decode, batch {self.requests}, {self.input_len} tokens in, {self.output_len} out",
            "first-token": f"one prompt of {self.input_len:,}: time to the first token",
            "prefill": f"{self.requests} prompts of {self.input_len:,}",
            "nano-vllm": f"nano-vllm's workload, {self.requests} requests",
            "start": "process start to first token, second start",
        }[self.kind]

    def workload(self, top_id: int = TOP_ID, seed: int = 0) -> Workload:
        """The prompts; another seed, other prompts of the same lengths, but for nano-vllm's, which are its own."""
        if self.kind == "nano-vllm":
            return nano_vllm(self.requests, top_id)
        return uniform(self.requests, self.input_len, self.output_len, top_id, seed)


STANDARD = {
    row.name: row
    for row in (
        TableRow("decode-1", "decode", 1, 128, 256),
        TableRow("decode-8", "decode", 8, 128, 256),
        TableRow("decode-64", "decode", 64, 128, 256),
        TableRow("decode-256", "decode", 256, 128, 256),
        TableRow("first-token", "first-token", 1, 4000, 1),
        TableRow("prefill", "prefill", 32, 2000, 1),
        TableRow("nano-vllm", "nano-vllm", 256),
        TableRow("start", "start"),
    )
}


def parse_row(text: str) -> TableRow:
    """A row by its name in STANDARD, or one of other sizes: decode:8x128+256, prefill:32x2000, first-token:4000."""
    if text in STANDARD:
        return STANDARD[text]
    found = WRITTEN.fullmatch(text)
    sizes = [int(each) for each in found.groups() if each and each.isdecimal()] if found else []
    if not found or 0 in sizes:
        raise UserError(f"--rows has {text!r}; give {', '.join(STANDARD)}, or sizes of your own such as {WAYS}")
    if found[5]:
        return TableRow(text, "nano-vllm", sizes[0])
    kind, requests, answer = found[1], int(found[2] or 1), int(found[4] or (2 if found[1] == "decode" else 1))
    if kind == "decode" and answer < 2:
        raise UserError(f"--rows has {text!r}: a step is the time between two tokens; give at least 2 tokens out")
    if kind != "decode" and answer > 1:
        raise UserError(f"--rows has {text!r}: a {kind} row ends with the first token; leave +{answer} out")
    return TableRow(text, kind, requests, int(found[3]), answer)
