"""The child process: what it says is checked, what it is limited to holds, and it starts again after a crash."""

from __future__ import annotations

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from chapters._cases import POISON, poisoned
from tiny_vllm.device.emulator.process import Worker
from tiny_vllm.sandbox import child
from tiny_vllm.sandbox.message import pack, unpack
from tiny_vllm.sandbox.runs import Child, Limits

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def run(tree, work, limits=None, exercise="42.1", **settings):
    with Child(tree, work, limits=limits, **settings) as process:
        return process.run("ch42_sums", exercise, {"x": X, "threads": 32, "factor": 3.0}, {"y": poisoned(2, 3)})


def test_a_message_survives_the_way(rng):
    arrays = {
        "a": rng.normal(size=(3, 2)).astype(np.float32),
        "b": rng.normal(size=4).astype(ml_dtypes.bfloat16),
        "c": np.array(7, np.int64),
        "d": np.empty((0, 5), np.float16),
    }
    words, back = unpack(pack({"x": [1, 2.5]}, arrays))
    assert words == {"x": [1, 2.5]} and back.keys() == arrays.keys()
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype
        np.testing.assert_array_equal(back[name], array)


def test_a_longer_answer_than_allowed_is_refused():
    program = "from tiny_vllm.device.emulator.process import serve; serve(lambda message: message * 2)"
    worker = Worker([sys.executable, "-c", program], {})
    assert worker.ask(b"five", 30, 8) == b"fivefive"
    with pytest.raises(ValueError, match="a message of 10 bytes, above 8"):
        worker.ask(b"seven", 30, 8)
    assert worker.ask(b"five", 30, 8) == b"fivefive"
    worker.end()


def test_who_does_not_read_is_ended_by_the_deadline():
    worker = Worker([sys.executable, "-c", "import time; time.sleep(60)"], {})
    with pytest.raises(TimeoutError):
        worker.ask(bytes(1 << 24), 0.5)


def test_poison(small):
    assert np.isnan(poisoned(2, 3)).all() and poisoned(2, dtype=np.int32).tolist() == [POISON, POISON]
    assert child.POISON == POISON


def test_a_run(tree, small):
    result = run(tree, small.folder.parent)
    np.testing.assert_array_equal(result.outputs["y"], 2 * X)
    assert (result.error, result.findings, result.never_written, result.printed) == ("", (), {"y": 0}, "")


def test_elements_that_nothing_wrote_are_counted(tree, work, write):
    write("42.2", "    if (threadIdx.x < 2) y[threadIdx.x] = 1;\n")
    result = run(tree, work, exercise="42.2")
    assert result.never_written == {"y": 2} and np.isnan(result.outputs["y"][:, 2]).all()


def test_fast_mode_sees_no_race(tree, work, write):
    write("42.2", "    y[0] = threadIdx.x;\n")
    assert {found.kind for found in run(tree, work, exercise="42.2").findings} == {"race"}
    assert run(tree, work, exercise="42.2", check=False).findings == ()


@pytest.mark.parametrize("order, last", [("forward", 31), ("reverse", 0)])
def test_threads_run_in_the_order_asked_for(tree, work, write, order, last):
    write("42.2", "    y[0] = threadIdx.x;\n")
    assert run(tree, work, exercise="42.2", check=False, order=order).outputs["y"][0, 0] == last


FORGE = """    import contextlib, os
    for file in range(3, 12):
        with contextlib.suppress(OSError):
            os.write(file, {!r})
"""


@pytest.mark.parametrize("answer", [b"forged answer" * 9, b"\xff" * 64, bytes(16) + b"{}"])
def test_a_forged_answer_is_none(tree, work, write, answer):
    write("42.1", FORGE.format(answer))
    result = run(tree, work)
    assert "answered in another form" in result.error and result.outputs == {}


def test_other_arrays_than_asked_for_are_no_answer(tree, work, write, monkeypatch):
    """The child is asked for y (2, 3), and the parent expects another form: as if the child had made it up."""
    from tiny_vllm.sandbox import runs

    def other(answer, outputs, printed):
        return result(answer, {"y": poisoned(3, 2)}, printed)

    result = runs._result
    monkeypatch.setattr(runs, "_result", other)
    write("42.1", "    y = 2 * x\n")
    assert "y came back as another array" in run(tree, work).error


def test_after_a_crash_the_next_run_has_a_process(tree, work, write):
    write("42.1", "    import os\n    if x[0, 0] == 1: os._exit(1)\n    y = 2 * x\n")
    with Child(tree, work) as process:
        inputs = {"x": X + 1, "threads": 32, "factor": 3.0}
        assert "exit code 1" in process.run("ch42_sums", "42.1", inputs, {"y": poisoned(2, 3)}).error
        result = process.run("ch42_sums", "42.1", {**inputs, "x": X}, {"y": poisoned(2, 3)})
    np.testing.assert_array_equal(result.outputs["y"], 2 * X)


def test_memory_is_limited(tree, work, write):
    write("42.1", "    y = np.ones((1 << 34,), np.uint8)[:6].reshape(2, 3) + x\n")
    result = run(tree, work, Limits(memory=4 << 30))
    assert "allocate" in result.error or "MemoryError" in result.kind


def test_a_file_cannot_grow_without_end(tree, work, write, tmp_path):
    grow = f"    with open({str(tmp_path / 'big')!r}, 'wb') as file:\n        file.truncate(1 << 33)\n    y = 2 * x\n"
    write("42.1", grow)
    assert run(tree, work).error
    assert (tmp_path / "big").stat().st_size <= 256 << 20


def test_the_network_is_cut_where_that_can_be(tree, work, write):
    write("42.1", "    import socket\n    y = x * 0 + len(socket.if_nameindex())\n")
    inside, outside = (run(tree, work, Limits(network=on)).outputs["y"][0, 0] for on in (False, True))
    if inside == outside and not _may_unshare():
        pytest.skip("this system lets no process give up its network")
    assert inside == 1  # the loopback alone, which is down


def _may_unshare() -> bool:
    program = "import ctypes; c = ctypes.CDLL(None); exit(c.unshare(0x40000000) and c.unshare(0x50000000))"
    return subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_secrets_of_the_environment_stay_outside(tree, work, write, monkeypatch):
    monkeypatch.setenv("API_TOKEN", "s3cret")
    write("42.1", "    import os; raise ValueError(sorted(os.environ))\n")
    assert "API_TOKEN" not in run(tree, work).error and "TINY_VLLM_WORK" in run(tree, work).error
