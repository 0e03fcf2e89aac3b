"""What compute-sanitizer prints, in the words of check mode. The texts follow the formats that its manual shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiny_vllm.device import compute_sanitizer
from tiny_vllm.device.compute_sanitizer import command, find_sanitizer, parse
from tiny_vllm.errors import DeviceError

MEMCHECK = """========= COMPUTE-SANITIZER
the script's own line
========= Invalid __global__ read of size 4 bytes
=========     at left_neighbour(const float *, int)+0x90 in kernels/bounds.cu:23
=========     by thread (35,0,0) in block (1,0,0)
=========     Address 0x7f2a00000190 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f2a00000000 of size 400 bytes
=========     Device Frame:bounds_device_function+0x80 in kernels/bounds.cu:27
=========     Saved host backtrace up to driver entry point at kernel launch time
========= Invalid __global__ read of size 4 bytes
=========     at left_neighbour(const float *, int)+0x90 in kernels/bounds.cu:23
=========     by thread (36,0,0) in block (1,0,0)
=========     Address 0x7f2a00000194 is out of bounds
========= Invalid __shared__ write of size 16 bytes
=========     at misaligned(float *)+0x60 in kernels/addresses.cu:7
=========     by thread (0,2,0) in block (0,0,0)
=========     Address 0x8 is misaligned
========= ERROR SUMMARY: 3 errors
"""
RACECHECK = """========= COMPUTE-SANITIZER
========= Error: Race reported between Read access at race_tree(float const *, float *)+0x310 in kernels/races.cu:11
=========     and Write access at race_tree(float const *, float *)+0x340 in kernels/races.cu:12 [248 hazards]
=========     and Write access at race_tree(float const *, float *)+0x120 in kernels/races.cu:6 [4 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
OLDER_RACECHECK = """========= COMPUTE-SANITIZER
========= ERROR: Race reported between Write access at 0x6360 in /home/me/races.cu:123:race_total(float const*, float*)
=========     and Write access at 0x1fe0 in /home/me/races.cu:123:race_total(float const*, float*) [1088 hazards]
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
SYNCCHECK = """========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in block.
=========     at barrier_after_return(const float *, float *, int)+0xf0 in kernels/barriers.cu:7
=========     by thread (0,0,0) in block (2,1,0)
=========     Saved host backtrace up to driver entry point at kernel launch time
========= ERROR SUMMARY: 1 error
"""
INITCHECK = """========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at unwritten_sum(const float *, float *, int)+0x70 in kernels/unwritten.cu:13
=========     by thread (5,0,0) in block (0,0,0)
=========     Address 0x7f2a00000214
========= ERROR SUMMARY: 1 error
"""


def test_memcheck():
    bounds, misaligned = parse(MEMCHECK)
    assert (bounds.kind, bounds.file, bounds.line, bounds.count) == ("out of bounds", "kernels/bounds.cu", 23, 2)
    assert (bounds.thread, bounds.block, bounds.kernel) == ((35, 0, 0), (1, 0, 0), "bounds_device_function")
    assert str(bounds) == (
        "kernels/bounds.cu:23: out of bounds: thread 35 of block 1 reads global memory outside its array, 1 bytes "
        "after the nearest array (400 bytes); correct the index, or let threads without an element do nothing (called "
        "from kernels/bounds.cu:27) [2 times]"
    )
    assert (misaligned.kind, misaligned.line, misaligned.thread) == ("misaligned", 7, (0, 2, 0))
    assert "thread (0, 2, 0) of block 0 touches 16 bytes at once" in str(misaligned)


def test_racecheck():
    [race] = parse(RACECHECK)
    assert (race.kind, race.file, race.line, race.other_line, race.count) == ("race", "kernels/races.cu", 11, 12, 252)
    assert race.kernel == "race_tree"
    assert "a thread reads here what another writes in line 12, and nothing orders the two; put a barrier" in str(race)
    [older] = parse(OLDER_RACECHECK)
    assert (older.file, older.line, older.count, older.kernel) == ("/home/me/races.cu", 123, 1088, "race_total")


def test_synccheck_and_initcheck():
    [barrier] = parse(SYNCCHECK)
    assert (barrier.kind, barrier.line, barrier.block) == ("barrier", 7, (2, 1, 0))
    assert "thread 0 of block (2, 1, 0) waits at this barrier, and other threads of its block do not" in str(barrier)
    [unwritten] = parse(INITCHECK)
    assert (unwritten.kind, unwritten.line, unwritten.thread) == ("uninitialised", 13, (5, 0, 0))


@pytest.mark.parametrize("text", ["", "hello\n", "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"])
def test_a_clean_run(text):
    assert parse(text) == []


def test_the_program(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(compute_sanitizer, "_PLACES", ())
    with pytest.raises(DeviceError, match=r"compute-sanitizer is not on the PATH.*--device emulator"):
        find_sanitizer()
    program = tmp_path / "compute-sanitizer"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert find_sanitizer() == str(program)
    assert command("cs", "racecheck", Path("log"), ["python", "a.py"])[:3] == ["cs", "--tool", "racecheck"]
    assert command("cs", "racecheck", Path("log"), ["python", "a.py"])[-2:] == ["python", "a.py"]
    assert "--padding" in command("cs", "memcheck", Path("log"), ["python", "a.py"])  # or a neighbour hides the end
