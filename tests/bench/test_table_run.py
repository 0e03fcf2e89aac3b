"""A run of the table: our engine on the emulator, and a module that stands in for vLLM."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.bench.stand_ins import write_vllm
from tests.conftest import DATA
from tiny_vllm import cli
from tiny_vllm.bench.table import run as table_run
from tiny_vllm.bench.table.contenders import PEERS, missing
from tiny_vllm.bench.table.contenders.base import Setup
from tiny_vllm.bench.table.process import ContenderError, ContenderProcess
from tiny_vllm.bench.table.report import markdown
from tiny_vllm.bench.table.result import Table
from tiny_vllm.bench.table.rows import parse_row
from tiny_vllm.bench.table.run import Plan, run_table

TINY = DATA / "tiny" / "tiny"
ROWS = ("decode:2x8+3", "prefill:3x9", "first-token:12")
MACHINE = {
    "copy": 1e10,
    "read": 1e10,
    "flops": 1e11,
    "layers": {2: 1e-5, 27: 1e-4, 12: 1e-4},
    "head": {1: 1e-6, 2: 1e-6, 3: 1e-6},
}
MACHINE |= {"card": "a card", "dtype": "float32", "element": 4, "is_gpu": True}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The folder that one `bench table --peers vllm` of every kind of row wrote into."""
    folder = tmp_path_factory.mktemp("whole")
    write_vllm(folder / "site")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder / "site"))
        files = [text for name in ("json", "markdown", "plot") for text in (f"--{name}", str(folder / f"t.{name[:3]}"))]
        files[-1] = str(folder / "t.png")
        where = ["--model", str(TINY), "--device", request.config.getoption("--device"), "--logs", str(folder)]
        what = ["--peers", "vllm", "--repeats", "1", "--rows", "start", *ROWS]
        assert cli.main(["bench", "table", *where, *what, *files]) == 0
    return folder


@pytest.fixture
def fake_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    write_vllm(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr(table_run, "measure_machine", lambda plan, rows: json.loads(json.dumps(MACHINE)))
    return monkeypatch


def run(folder: Path, *names: str, rows: tuple[str, ...] = ROWS, seconds: float = 60) -> Table:
    """Without the command line, and with ceilings that nobody measured."""
    wanted = [parse_row(text) for text in rows]
    return run_table(Plan(names, Setup(str(TINY), 1024, 0.5), 2, seconds, folder), wanted, lambda table: None)


def cells(table: Table, name: str) -> dict[str, Any]:
    return {each.row.name: each.cells[name] for each in table.rows}


def grid(text: str) -> list[dict[str, str]]:
    """A Markdown table by its heads, every line of the same width."""
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    assert len({len(line) for line in lines}) == 1
    heads, rule, *rows = ([cell.strip() for cell in line] for line in lines)
    assert all(re.fullmatch(":?-+:?", cell) for cell in rule)
    return [dict(zip(heads, row)) for row in rows]


def test_ours_beside_a_peer(whole):
    found = json.loads((whole / "t.jso").read_text(encoding="utf-8"))
    assert [each["row"] for each in found["rows"]] == [*ROWS, "start"]  # processes are started when the rest is done
    assert found["versions"]["vllm"] == {"vllm": "0.0.fake", "torch": "9.9.fake"}
    for row in found["rows"]:
        ours, theirs = (row["contenders"][name]["value"] for name in ("ours", "vllm"))
        assert (row["floor"] is None) == (row["row"] == "start")
        won = ours > theirs if row["higher_is_better"] else ours < theirs
        assert row["verdict"] == ("PASS" if won else "FAIL")
        times = ours / theirs if row["higher_is_better"] else theirs / ours
        assert row["contenders"]["vllm"]["ratio"] == pytest.approx(times)
    assert "a line on standard output that is no reply" in (whole / "vllm-run.log").read_text()


def test_the_json_has_one_schema(whole):
    found = json.loads((whole / "t.jso").read_text(encoding="utf-8"))
    assert set(found) == {
        *("schema", "model", "card", "dtype", "repeats", "ceilings", "versions", "first_starts", "notes", "rows")
    }
    assert found["schema"] == 1 and set(found["ceilings"]) == {"copy", "read", "flops", "layers", "head"}
    for row in found["rows"]:
        assert set(row) == {
            *("row", "title", "unit", "higher_is_better", "floor", "floor_share", "target", "target_met"),
            *("vllm_best", "verdict", "flops", "bytes", "contenders"),
        }
        assert set(row["contenders"]) == {"ours", "vllm"}
        assert all(set(cell) == {"value", "samples", "ratio", "why"} for cell in row["contenders"].values())


def test_the_markdown_is_a_table_of_the_same_figures(whole):
    found = json.loads((whole / "t.jso").read_text(encoding="utf-8"))
    rows = grid((whole / "t.mar").read_text(encoding="utf-8"))
    assert [each["unit"] for each in rows] == ["ms a step", "tokens/s", "ms", "s"]
    for line, row in zip(rows, found["rows"], strict=True):
        shown = float(line["ours"].replace(",", ""))
        assert shown == pytest.approx(row["contenders"]["ours"]["value"], rel=5e-3)
        assert line["verdict"] == row["verdict"] and f"({row['contenders']['vllm']['ratio']:.2f}x)" in line["vLLM"]


def test_the_picture_is_written(whole):
    assert (whole / "t.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.skipif(missing("vllm") is None, reason="vLLM is installed")
def test_a_peer_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr(table_run, "measure_machine", lambda plan, rows: json.loads(json.dumps(MACHINE)))
    table = run(tmp_path, "vllm", rows=ROWS[:1])
    assert cells(table, "vllm")[ROWS[0]].why == "not installed: vllm (pip install vllm)"
    [line] = grid(markdown(table))
    assert line["vLLM"] == "not installed" and f"vLLM, {ROWS[0]}: not installed: vllm (pip" in markdown(table)


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("crash", "failed: its process ended with signal SIGABRT: the last words of a kernel"),
        ("raise", "failed: ValueError: a batch of 3 is too much"),
        ("hang", "failed: no answer within 4 s"),
    ],
)
def test_a_peer_that_fails_in_one_row_is_whole_in_the_others(tmp_path, fake_vllm, fault, why):
    fake_vllm.setenv("FAKE_VLLM", fault)
    table = run(tmp_path, "vllm", seconds=4)
    found = cells(table, "vllm")
    assert [found[row].value is None for row in ROWS] == [False, True, False]
    assert found[ROWS[1]].why == why and f"vLLM, {ROWS[1]}: {why}" in markdown(table)
    assert [row["vLLM"] == "failed" for row in grid(markdown(table))] == [False, True, False]


def test_a_peer_that_fails_leaves_ours_whole(tmp_path, fake_vllm):
    fake_vllm.setenv("FAKE_VLLM", "crash")
    table = run(tmp_path, "ours", "vllm", rows=ROWS[1:2])
    assert len(cells(table, "ours")[ROWS[1]].samples) == 2 and cells(table, "vllm")[ROWS[1]].value is None


def test_a_peer_that_does_not_load_is_out(tmp_path, fake_vllm):
    fake_vllm.setenv("FAKE_VLLM", "load")
    table, why = run(tmp_path, "vllm", rows=ROWS[:2]), "failed: RuntimeError: no room for the cache"
    assert {cell.why for cell in cells(table, "vllm").values()} == {why}
    assert f"vLLM, {ROWS[0]}, {ROWS[1]}: {why}" in markdown(table)


def test_measurements_are_taken_in_turn(tmp_path, fake_vllm, monkeypatch):
    """One of every contender, then the next of each."""
    turns: list[tuple[str, str]] = []
    ask = ContenderProcess.ask

    def asked(self: ContenderProcess, message: dict[str, Any]) -> dict[str, Any]:
        turns.append((self._log.name.partition("-")[0], f"{next(iter(message))} {message.get('seed', '')}".strip()))
        return ask(self, message)

    monkeypatch.setattr(ContenderProcess, "ask", asked)
    run(tmp_path, "ours", "vllm", rows=ROWS[:1])
    steps = ["warm_up", "sample 0", "sample 1"]
    assert turns[:2] == [("ours", "get_ready"), ("vllm", "get_ready")]
    assert turns[2:] == [(name, step) for step in steps for name in ("ours", "vllm")]


def test_a_row_that_a_contender_leaves_out(tmp_path, fake_vllm):
    """torch.compile has decode rows only: nothing is started for the others."""
    (tmp_path / "site" / "transformers").mkdir()
    (tmp_path / "site" / "transformers" / "__init__.py").write_text("raise SystemExit('imported')")
    table = run(tmp_path, "compile", rows=ROWS[2:])
    assert cells(table, "compile")[ROWS[2]].why == "not measured"
    assert grid(markdown(table))[0]["torch.compile"] == "not measured"


def test_strict_tells_by_the_exit_code(tmp_path, fake_vllm, capsys):
    """Without our engine no row passes."""
    fake_vllm.setattr("tiny_vllm.cli_bench_table.contenders", lambda arguments: ["vllm"])
    command = ["bench", "table", "--model", str(TINY), "--rows", ROWS[0], "--repeats", "1"]
    assert [cli.main(command), cli.main([*command, "--strict"])] == [0, 1]
    assert grid(capsys.readouterr().out.partition("first start")[0])[0]["verdict"] == "FAIL"


def test_starts_by_their_own_command(capsys, fake_vllm):
    fake_vllm.setattr("tiny_vllm.cli_bench_start.contenders", lambda arguments: ["vllm", "transformers"])
    assert cli.main(["bench", "start", "--model", str(TINY), "--repeats", "2", "--json"]) == 0
    starts = json.loads(capsys.readouterr().out)
    assert len(starts["vllm"]["later"]) == 2 and starts["vllm"]["first"] > 0
    assert sorted(starts["vllm"]["later"])[0] <= starts["vllm"]["median"] <= sorted(starts["vllm"]["later"])[1]
    assert starts["transformers"]["why"]  # not installed, or it fails on the torch that only looks like one
    assert cli.main(["bench", "start", "--model", str(TINY), "--repeats", "1"]) == 0
    assert re.match(r"vllm: first start \d+\.\d\d s; later ones \d+\.\d\d s, median", capsys.readouterr().out)


def test_cold_starts_find_no_cache(capsys, fake_vllm, tmp_path):
    """Every cache of compiled kernels points to one empty folder, the same for all starts of the call."""
    code = "import os; open(os.environ['SEEN'], 'a').write(os.environ['CUPY_CACHE_DIR'] + '\\n')"
    (tmp_path / "site" / "torch" / "__init__.py").write_text(f"{code}\n__version__ = '1'\n")
    fake_vllm.setenv("SEEN", str(tmp_path / "seen"))
    fake_vllm.setattr("tiny_vllm.cli_bench_start.contenders", lambda arguments: ["vllm"])
    assert cli.main(["bench", "start", "--model", str(TINY), "--repeats", "1", "--cold"]) == 0
    first, second = (tmp_path / "seen").read_text().split()
    assert first == second and not Path(first).exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rows", "decode-3"), "--rows has 'decode-3'; give decode-1, "),
        (("--repeats", "0"), "--repeats is 0; give at least 1"),
        (("--rows", "first-token"), "first-token (4001): longer than the 2048 tokens that the model takes"),
        (("--json", "no-such-folder/t.json"), "no-such-folder is not a folder"),
        (("--plot", "roofline.txt"), "--plot is roofline.txt; give a name that ends in .png, .svg, .pdf"),
        (("--peers", "tgi"), "invalid choice: 'tgi'"),
        (("--model", "no-such-folder"), "no-such-folder is not a folder"),
    ],
)
def test_mistakes(capsys, arguments, message):
    code = cli.main(["bench", "table", "--model", str(TINY), "--device", "emulator", *arguments])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "") and message in err and err.count("\n") == 1


def test_ceilings_that_cannot_be_measured(capsys):
    from tiny_vllm.device.cupy_setup import why_no_cuda

    if why_no_cuda() is None:
        pytest.skip("there is a GPU")
    code = cli.main(["bench", "table", "--model", str(TINY), "--device", "cuda", "--rows", "start", "--peers"])
    assert code == 2 and "the machine's own ceilings could not be measured: DeviceError" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_what_a_process_starts_ends_with_it(tmp_path, fake_vllm):
    """Its helpers too, as vLLM's engine is one; a message that makes no sense does not end the process."""
    fake_vllm.setenv("FAKE_VLLM", "helper")
    settings = {"model": str(TINY), "max_model_len": 64, "memory_share": 0.5}
    with ContenderProcess("vllm", settings, tmp_path / "log", 30) as process:
        [helper] = re.findall(r"^helper (\d+)$", (tmp_path / "log").read_text(), re.MULTILINE)
        assert is_alive(int(helper))
        with pytest.raises(ContenderError, match="KeyError: 'nonsense'") as failure:
            process.ask({"sample": {"name": "x", "kind": "nonsense", "requests": 0}, "seed": 0})
        assert not failure.value.is_dead and process.ask({"get_ready": True}) == {"ready": True}
    deadline = time.monotonic() + 10  # a signal takes its time
    while is_alive(int(helper)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive(int(helper))


def is_alive(pid: int) -> bool:
    """Not when it has ended and nobody has asked for its exit code yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_every_peer_says_how_to_get_it():
    assert list(PEERS) == ["transformers", "compile", "vllm"]
    assert all(peer.needs and peer.install.startswith("pip install") for peer in PEERS.values())
