"""`tiny-vllm check`: a script runs as Python runs it, its kernels under check; exit code 1 where there are findings."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tiny_vllm import cli, cli_check
from tiny_vllm.device import compute_sanitizer

SCRIPT = """
import sys
import helper
from tiny_vllm.device import get_device

device = get_device()
code = '''#line 1 "shift.cu"
extern "C" __global__ void shift(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x + 1]; }'''
x, y = device.zeros(40, "float32"), device.empty(40, "float32")
device.RawKernel(code, "shift")((1,), (int(sys.argv[1]),), (x, y))
print("the script's end", __name__, sys.argv[1:])
"""
FOUND = "shift.cu:1: out of bounds: thread 39 reads x[40]"


@pytest.fixture
def script(tmp_path) -> str:
    (tmp_path / "helper.py").write_text("", encoding="utf-8")
    path = tmp_path / "script.py"
    path.write_text(SCRIPT, encoding="utf-8")
    return str(path)


def check(capsys, *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["check", "--device", "emulator", *arguments])
    return code, *capsys.readouterr()


def test_a_fault(script, capsys):
    before = dict(os.environ), list(sys.argv), list(sys.path)
    code, out, _ = check(capsys, script, "40")
    assert code == 1 and FOUND in out and "the script's end" not in out
    assert before == (dict(os.environ), list(sys.argv), list(sys.path))
    sys.modules.pop("helper", None)


def test_no_fault(script, capsys):
    code, out, err = check(capsys, "--order", "reverse", script, "39", "--json")
    assert (code, out) == (0, "the script's end __main__ ['39', '--json']\n")
    assert err == "tiny-vllm check: no findings\n"


@pytest.mark.parametrize(
    "text, code", [("raise SystemExit(3)", 3), ("raise SystemExit", 0), ("import sys; sys.exit('no')", 1), ("1 / 0", 1)]
)
def test_the_script_s_own_end(tmp_path, capsys, text, code):
    path = tmp_path / "ends.py"
    path.write_text(text, encoding="utf-8")
    result = check(capsys, str(path))
    assert result[0] == code
    assert ("ZeroDivisionError" in result[2]) == ("1 / 0" in text)


def test_no_script(capsys):
    code, _, err = check(capsys, "nowhere.py")
    assert code == 2 and "there is no script nowhere.py" in err


def test_on_a_gpu_by_a_stand_in(script, capsys, tmp_path, monkeypatch):
    """A stand-in for compute-sanitizer notes what it is asked and writes one finding for racecheck."""
    program = tmp_path / "compute-sanitizer"
    program.write_text(
        f"""#!{sys.executable}
import os, sys
tool, log = sys.argv[2], sys.argv[4]
bar = "========="
report = bar + " Error: Race reported between Read access at k()+0x10 in k.cu:7\\n"
report += bar + "     and Write access at k()+0x20 in k.cu:8 [4 hazards]\\n"
open(log, "w").write(report if tool == "racecheck" else bar + " ERROR SUMMARY: 0 errors\\n")
open({str(tmp_path / "asked")!r}, "a").write(f"{{tool}} {{os.environ['TINY_VLLM_CHECK']}} {{sys.argv[-2:]}}\\n")
""",
        encoding="utf-8",
    )
    program.chmod(0o755)
    monkeypatch.setattr(compute_sanitizer, "find_sanitizer", lambda: str(program))
    monkeypatch.setattr(cli_check, "_device", lambda name: "cuda")
    code, out, _ = check(capsys, script, "39")
    assert code == 1 and out.startswith("k.cu:7: race: a thread reads here what another writes in line 8")
    asked = Path(tmp_path / "asked").read_text(encoding="utf-8").splitlines()
    assert asked == [f"{tool} 1 {[script, '39']}" for tool in compute_sanitizer.TOOLS]
