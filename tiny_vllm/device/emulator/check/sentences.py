"""The sentence for each kind of finding: who does what, where, and what to do next."""

from __future__ import annotations

from tiny_vllm.device.emulator.check.findings import Code, Record
from tiny_vllm.device.emulator.check.words import Place, Sentence, Words


def _verb(record: Record) -> str:
    if record.atomics & 1:
        return "changes, atomically,"
    return "writes" if record.writes else "reads"


def _out_of_bounds(words: Words, record: Record, place: Place) -> str:
    who, verb = words.who(record), _verb(record)
    if place.index is None:
        return f"{who} {verb} {place}; correct the pointer or the index"
    if not place.elements:
        return f"{who} {verb} {place}, and it has no elements; launch nothing for an empty array"
    limits = f"it has {place.elements} elements, 0 to {place.elements - 1}{words.view_note(record)}"
    way_out = (
        "correct the index" if place.index < 0 else "correct the index, or let threads without an element do nothing"
    )
    return f"{who} {verb} {place}; {limits}; {way_out}"


def _array_index(words: Words, record: Record, place: Place) -> str:
    kind = record.text.strip("'")
    return f"{words.who(record)} uses the index {record.offset} of an array declared as {kind}; correct the index"


def _race(words: Words, record: Record, place: Place) -> str:
    verb = "changed, atomically," if record.atomics & 2 else "wrote" if record.other_writes else "read"
    too = " too" if record.writes and record.other_writes else ""
    here = record.lines[0] if record.lines else None
    other = record.other_line
    at = ""
    if other and other != here:
        at = f" (line {other.number})" if here and other.file == here.file else f" ({other})"
    between_blocks = record.other_block != record.block
    when = "" if between_blocks else " since the last __syncthreads()"
    story = f"{words.who(record)} {_verb(record)} {place}, which {words.other(record)} {verb}{too}{at}{when}"
    if between_blocks:
        return f"{story}; nothing orders the blocks of a launch: give each block its own element, or use atomicAdd"
    if record.atomics:
        return f"{story}; make both accesses atomic, or put a barrier between the two"
    if record.writes and record.other_writes and other == here:
        return f"{story}; give each thread its own element, use an atomic operation, or let one thread do it"
    return f"{story}; put a barrier between the two"


def _returned(words: Words, record: Record, place: Place) -> str:
    return (
        f"{words.who(record)} waits at this barrier, and {words.other(record)} has returned already; every thread of "
        "the block must come to it: let a thread without work skip the work, not the barrier"
    )


def _different(words: Words, record: Record, place: Place) -> str:
    other = f"at another, {record.other_line}" if record.other_line else "at another"
    return (
        f"{words.who(record)} waits at this barrier, {words.other(record)} {other}; all threads of a block must meet "
        "at the same one: take it out of the if, or out of the loop that some leave early"
    )


def _stuck(words: Words, record: Record, place: Place) -> str:
    return (
        f"{words.who(record)} waits at this barrier for threads that never come; let all threads of the block pass it"
    )


def _unwritten(words: Words, record: Record, place: Place) -> str:
    story = f"{words.who(record)} {_verb(record)} {place}, which "
    if record.argument >= 0:
        return f"{story}nothing has written since device.empty made it; fill it first, or start from device.zeros"
    return f"{story}no thread of its block has written; fill it first, with a barrier behind, or read fewer elements"


def _in_flight(words: Words, record: Record, place: Place) -> str:
    return f"{words.who(record)} {_verb(record)} {place}, which a cp.async is still copying; commit and wait before it"


def _lane_returned(words: Words, record: Record, place: Place) -> str:
    return (
        f"{words.who(record)} waits for the lanes of mask {record.mask:#010x}, and lane {record.offset} has returned "
        "or is not there; name only lanes that take part"
    )


def _lane_not_in_mask(words: Words, record: Record, place: Place) -> str:
    return (
        f"{words.who(record)} takes a value from lane {record.offset}, which is not in the mask {record.mask:#010x}; "
        "put that lane into the mask, or read from another"
    )


def _caller_not_in_mask(words: Words, record: Record, place: Place) -> str:
    return (
        f"{words.who(record)} is lane {record.offset}, which its own mask {record.mask:#010x} leaves out; every lane "
        "that calls must be in the mask"
    )


def _lanes_never_come(words: Words, record: Record, place: Place) -> str:
    absent = "lanes" if record.offset < 0 else f"lane {record.offset}"
    return (
        f"{words.who(record)} waits for the lanes of mask {record.mask:#010x}, and {absent} never comes with that "
        "mask; take the operation out of the if, or name only the lanes that are there"
    )


def _misaligned(words: Words, record: Record, place: Place) -> str:
    kind = f" as {record.text.strip(chr(39))}" if record.text else ""
    return (
        f"{words.who(record)} touches {record.size} bytes at once at {place}{kind}, an address that is no multiple of "
        f"{record.size}; start at such a multiple, or read element by element"
    )


def _null_pointer(words: Words, record: Record, place: Place) -> str:
    return f"{words.who(record)} {_verb(record)} through a null pointer; give the kernel the array"


def _division(words: Words, record: Record, place: Place) -> str:
    return f"{words.who(record)} divides an integer by zero, for which a GPU gives any number; check the divisor first"


def _endless(words: Words, record: Record, place: Place) -> str:
    return f"{words.who(record)} was still here {record.text}; does the loop's condition ever change?"


SENTENCES: dict[Code, Sentence] = {
    Code.OUT_OF_BOUNDS: _out_of_bounds,
    Code.ARRAY_INDEX: _array_index,
    Code.RACE: _race,
    Code.RETURNED_BEFORE_BARRIER: _returned,
    Code.DIFFERENT_BARRIERS: _different,
    Code.STUCK_AT_BARRIER: _stuck,
    Code.UNWRITTEN: _unwritten,
    Code.IN_FLIGHT: _in_flight,
    Code.LANE_RETURNED: _lane_returned,
    Code.LANE_NOT_IN_MASK: _lane_not_in_mask,
    Code.CALLER_NOT_IN_MASK: _caller_not_in_mask,
    Code.LANES_NEVER_COME: _lanes_never_come,
    Code.MISALIGNED: _misaligned,
    Code.NULL_POINTER: _null_pointer,
    Code.DIVISION_BY_ZERO: _division,
    Code.ENDLESS: _endless,
}
