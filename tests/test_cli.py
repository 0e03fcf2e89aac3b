"""The command line: what it prints where, its exit codes, and one sentence for every mistake."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tiny_vllm
from tiny_vllm import cli, cli_engine, cli_generate
from tiny_vllm.errors import KernelError
from tiny_vllm.llm import LLM

ROOT = Path(__file__).resolve().parents[1]
TINY = Path(__file__).parent / "data" / "tiny" / "tiny"
HELLO = "Hello there"


@pytest.fixture
def where(request) -> str:
    return request.config.getoption("--device")


@pytest.fixture
def generate(where, capsys):
    """Run `tiny-vllm generate` in this process: (exit code, stdout, stderr)."""

    def run(*arguments: str, model: Path | str = TINY) -> tuple[int, str, str]:
        device = [] if "--device" in arguments else ["--device", where]
        code = cli.main(["generate", "--model", str(model), *device, *arguments])
        return code, *capsys.readouterr()

    return run


def subprocess_run(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tiny_vllm", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=ROOT,
        env={**os.environ, **environment},
        timeout=120,
        check=False,
    )


def sentence(result: tuple[int, str, str], code: int = 2) -> str:
    """The one line of an error; nothing else was printed."""
    assert result[0] == code
    assert result[1] == ""
    assert result[2].startswith("tiny-vllm: error: ")
    assert result[2].count("\n") == 1 and result[2].endswith("\n")
    return result[2].strip()


# ---- answers


def test_text_to_stdout_and_figures_to_stderr(generate, where):
    code, out, err = generate("--max-tokens", "6", "--dtype", "float32", HELLO)
    with LLM(TINY, device=where, dtype="float32") as llm:
        params = tiny_vllm.SamplingParams(temperature=0.0, max_tokens=6)
        [answer] = llm.generate(HELLO, params)[0].outputs
    assert (code, out) == (0, answer.text + "\n")
    [line] = err.splitlines()
    for part in (f"{len(answer.token_ids)} tokens", "tokens/s", "first token after", "GB/s", "% of this machine's"):
        assert part in line


def test_json_is_one_object_and_nothing_else(generate):
    code, out, err = generate("--json", "--max-tokens", "3", "--dtype", "float32", HELLO)
    assert (code, err) == (0, "")
    assert out.count("\n") == 1
    found = json.loads(out)
    assert list(found) == [
        "model", "device", "dtype", "prompt_token_ids", "token_ids", "text", "finish_reason", "figures",
    ]  # fmt: skip
    assert (found["model"], found["dtype"], found["finish_reason"]) == (str(TINY), "float32", "length")
    assert len(found["token_ids"]) == found["figures"]["num_tokens"] == 3
    assert set(found["figures"]) == {
        "num_tokens", "time_to_first_token_s", "tokens_per_second", "weights_bytes_per_second",
        "bandwidth_bytes_per_second", "bandwidth_share",
    }  # fmt: skip


def answer_of(result: tuple[int, str, str]) -> dict[str, Any]:
    assert result[0] == 0, result
    return json.loads(result[1])


def test_chat_uses_the_template(generate):
    plain = answer_of(generate("--json", "--max-tokens", "1", HELLO))["prompt_token_ids"]
    chat = answer_of(generate("--json", "--max-tokens", "1", "--chat", HELLO))["prompt_token_ids"]
    assert len(chat) > len(plain) and chat[0] == 510


def test_the_default_is_greedy_and_a_seed_repeats_a_draw(generate):
    def tokens(*options: str) -> list[int]:
        return answer_of(generate("--json", "--max-tokens", "12", *options, HELLO))["token_ids"]

    assert tokens() == tokens()
    hot = ("--temperature", "2.5", "--seed")
    assert tokens(*hot, "4") == tokens(*hot, "4") != tokens(*hot, "5")


def test_a_dash_reads_standard_input(generate, monkeypatch):
    expected = answer_of(generate("--json", "--max-tokens", "1", HELLO))["prompt_token_ids"]
    monkeypatch.setattr(sys, "stdin", io.StringIO(HELLO + "\n"))
    assert answer_of(generate("--json", "--max-tokens", "1", "-"))["prompt_token_ids"] == expected


def test_max_model_len_bounds_the_answer(generate):
    found = answer_of(generate("--json", "--max-tokens", "500", "--max-model-len", "20", HELLO))
    assert len(found["prompt_token_ids"]) + len(found["token_ids"]) <= 20


def test_the_engines_settings_do_not_change_the_answer(generate):
    plain = answer_of(generate("--json", "--max-tokens", "20", "--dtype", "float32", HELLO))
    settings = ("--max-num-seqs", "2", "--max-num-batched-tokens", "3", "--block-size", "8", "--enforce-eager")
    more = ("--no-enable-prefix-caching", "--async-scheduling", "--num-gpu-blocks-override", "9")
    found = answer_of(generate("--json", "--max-tokens", "20", "--dtype", "float32", *settings, *more, HELLO))
    assert found["token_ids"] == plain["token_ids"]
    small = ("--num-gpu-blocks-override", "1", "--max-tokens", "60")
    assert "the cache has 1; lower max_tokens to" in sentence(generate(*small, HELLO))


def test_reference_ops_run_too(generate):
    options = ("--json", "--max-tokens", "4", "--device", "emulator", "--dtype", "float32")
    tuned, reference = (answer_of(generate(*options, "--ops", ops, HELLO)) for ops in ("tuned", "reference"))
    assert tuned["token_ids"] == reference["token_ids"]


def test_course_is_handed_to_the_engine_as_its_loader(monkeypatch):
    import tiny_vllm.course

    monkeypatch.setattr(tiny_vllm.course, "load_course_ops", "the loader", raising=False)
    assert cli_engine._ops("course") == "the loader"
    assert cli_engine._ops("tuned") == "tuned"


def test_characters_that_the_terminal_lacks(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    cli_generate._write("aé😀b")
    assert raw.getvalue() == b"a??b"


# ---- mistakes


def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINY, tmp_path / "model"))


def edit_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1000])


BROKEN_MODELS = {
    "no config.json": (lambda folder: (folder / "config.json").unlink(), "config.json"),
    "broken JSON": (lambda folder: (folder / "config.json").write_text('{"model_type": '), "config.json"),
    "truncated safetensors": (lambda folder: truncate(folder / "model.safetensors"), "model.safetensors"),
    "shape against config": (lambda folder: edit_config(folder, intermediate_size=136), "mlp.down_proj"),
    "unknown rope": (lambda folder: edit_config(folder, rope_scaling={"rope_type": "spiral", "factor": 2}), "spiral"),
    "not Llama": (lambda folder: edit_config(folder, model_type="mamba"), "mamba"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json"),
}


@pytest.mark.parametrize("case", BROKEN_MODELS)
def test_broken_models(generate, tmp_path, case):
    damage, named = BROKEN_MODELS[case]
    folder = copied(tmp_path)
    damage(folder)
    assert named in sentence(generate(HELLO, model=folder))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--dtype", "int8", HELLO], "int8"),
        (["--device", "tpu", HELLO], "tpu"),
        (["--ops", "fast", HELLO], "fast"),
        (["--max-tokens", "0", HELLO], "max_tokens is 0"),
        (["--max-tokens", "many", HELLO], "many"),
        (["--temperature", "-1", HELLO], "temperature is -1"),
        (["--temperature", "nan", HELLO], "temperature is nan"),
        (["--seed", "-1", HELLO], "seed is -1"),
        (["--max-model-len", "9999", HELLO], "max_model_len is 9999"),
        (["--max-model-len", "4", "a long prompt of many words"], "max_model_len is 4"),
        ([""], "no tokens"),
        ([], "PROMPT"),
        (["--unknown", HELLO], "--unknown"),
    ],
)
def test_wrong_arguments(generate, arguments, named):
    assert named in sentence(generate(*arguments))


def test_a_wrong_number_is_met_before_the_model_is_looked_for(generate):
    assert "max_tokens" in sentence(generate("--max-tokens", "0", HELLO, model="no/such-model"))


@pytest.mark.parametrize("arguments", [[], ["dance"], ["generate"]])
def test_commands(capsys, arguments):
    sentence((cli.main(arguments), *capsys.readouterr()))


def test_no_gpu():
    result = subprocess_run("generate", "--device", "cuda", "--model", str(TINY), HELLO, CUDA_VISIBLE_DEVICES="")
    assert "cuda" in sentence((result.returncode, result.stdout, result.stderr))


def test_no_compiler(tmp_path):
    environment = {"TINY_VLLM_CXX": str(tmp_path / "no-such-compiler"), "TINY_VLLM_CACHE": str(tmp_path / "cache")}
    result = subprocess_run("generate", "--device", "emulator", "--model", str(TINY), HELLO, **environment)
    assert "compiler" in sentence((result.returncode, result.stdout, result.stderr))


def test_bfloat16_on_a_gpu_that_lacks_it(generate, monkeypatch, device):
    monkeypatch.setattr(device, "name", "cuda")
    monkeypatch.setattr(device, "description", "Tesla T4")
    monkeypatch.setattr(device, "compute_capability", 75)
    message = sentence(generate("--dtype", "bfloat16", HELLO))
    assert "Tesla T4 has compute capability 7.5" in message and "float16" in message


def test_a_hub_model_out_of_reach(tmp_path):
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    result = subprocess_run("generate", "--device", "emulator", "--model", "org/no-such-model", HELLO, **environment)
    assert "org/no-such-model" in sentence((result.returncode, result.stdout, result.stderr))


# ---- other ways to end


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (KernelError("rms_norm.cu, line 3: no"), 1, "tiny-vllm: error: rms_norm.cu, line 3: no\n"),
        (OSError(28, "No space left on device"), 1, "tiny-vllm: error: [Errno 28] No space left on device\n"),
        (MemoryError("8 GB"), 1, "tiny-vllm: error: not enough memory (8 GB); use a smaller model"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_failures(generate, monkeypatch, raised, code, said):
    def fail(arguments: Any) -> None:
        raise raised

    monkeypatch.setattr(cli_generate, "_load", fail)
    found = generate(HELLO)
    assert (found[0], found[1]) == (code, "")
    assert found[2].startswith(said) and (said or not found[2])


def test_an_error_of_ours_keeps_its_traceback(generate, monkeypatch):
    monkeypatch.setattr(cli_generate, "_load", lambda arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        generate(HELLO)


def test_a_reader_that_leaves_is_no_error():
    command = [sys.executable, "-m", "tiny_vllm", "generate", "--device", "emulator", "--model", str(TINY), HELLO]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_version_and_help(capsys):
    for option, said in (("--version", f"tiny-vllm {tiny_vllm.__version__}\n"), ("--help", "usage: tiny-vllm")):
        with pytest.raises(SystemExit) as left:
            cli.main([option])
        assert left.value.code == 0
        assert capsys.readouterr().out.startswith(said)


def test_the_version_is_the_packages():
    assert f'version = "{tiny_vllm.__version__}"' in (ROOT / "pyproject.toml").read_text()


def test_help_loads_no_engine():
    program = "import sys, tiny_vllm.cli; tiny_vllm.cli.build_parser(); print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"numpy", "tokenizers", "jinja2", "tiny_vllm.llm", "cupy"} & set(result.stdout.split())


def test_the_package_offers_its_names_lazily():
    program = "import sys, tiny_vllm; print('numpy' in sys.modules, tiny_vllm.LLM, tiny_vllm.SamplingParams)"
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.startswith("False <class 'tiny_vllm.llm.LLM'>")
    with pytest.raises(AttributeError, match="no attribute 'Llm'"):
        tiny_vllm.Llm  # noqa: B018
