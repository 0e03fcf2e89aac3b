from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from tools import make_checkpoint as tool

SCRIPT = Path(tool.__file__)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name != "golden.json"}


def weights(folder: Path) -> dict[str, np.ndarray]:
    return {name: array for file in folder.glob("*.safetensors") for name, array in load_file(file).items()}


def test_makes_the_goldens_byte_for_byte(tiny_folder, tmp_path):
    preset = json.loads((tiny_folder / "golden.json").read_text())["preset"]
    shards = max(1, len(list(tiny_folder.glob("model-*"))))
    tool.make_checkpoint(tmp_path / "out", preset, shards=shards)
    made, golden = contents(tmp_path / "out"), contents(tiny_folder)
    assert made.keys() == golden.keys()
    for name in golden:
        assert made[name] == golden[name], name


def test_runs_as_a_script_from_anywhere(tmp_path):
    options = ["--preset", "tiny-odd", "--set", "num_hidden_layers=1", "--set", "rope_theta=5e4", "--seed", "3"]
    command = [sys.executable, str(SCRIPT), "out", *options]
    subprocess.run(command, cwd=tmp_path, check=True)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["num_hidden_layers"] == 1 and config["rope_theta"] == 5e4 and "head_dim" not in config
    assert len(weights(tmp_path / "out")) == 3 + 9


def test_another_seed_gives_other_weights_of_the_same_kind(tmp_path):
    for seed in (0, 1):
        tool.make_checkpoint(tmp_path / str(seed), seed=seed)
    first, second = weights(tmp_path / "0"), weights(tmp_path / "1")
    for name, array in first.items():
        a, b = array.astype(np.float64), second[name].astype(np.float64)
        assert not np.array_equal(a, b)
        assert abs(a.std() / b.std() - 1) < 0.5


def test_shards_hold_the_same_tensors(tmp_path):
    tool.make_checkpoint(tmp_path / "one")
    tool.make_checkpoint(tmp_path / "four", shards=4)
    assert len(list((tmp_path / "four").glob("*.safetensors"))) == 4
    index = json.loads((tmp_path / "four" / "model.safetensors.index.json").read_text())
    one, four = weights(tmp_path / "one"), weights(tmp_path / "four")
    assert one.keys() == four.keys() == index["weight_map"].keys()
    assert index["metadata"]["total_size"] == sum(a.nbytes for a in one.values())
    for name, array in one.items():
        np.testing.assert_array_equal(array, four[name])


def test_pieces_do_not_show(monkeypatch):
    """Drawing in pieces gives the numbers of one draw, whatever the size of a piece."""
    spec = tool.Normal((37, 11), 0.5, 2.0)
    whole = np.concatenate(list(tool.draw("a.weight", spec, seed=4)))
    monkeypatch.setattr(tool, "CHUNK", 13)
    pieces = list(tool.draw("a.weight", spec, seed=4))
    assert len(pieces) == 32 and whole.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(np.concatenate(pieces), whole)


def test_the_large_preset_has_the_real_models_size():
    plan = tool.tensor_plan(tool.make_config("llama-3.2-1b", {}))
    assert sum(math.prod(spec.shape) for spec in plan.values()) == 1_235_814_400
    assert plan["model.layers.15.self_attn.k_proj.weight"].shape == (512, 2048)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--set", "num_kv_heads=4"], "--set num_kv_heads: no such entry; there are architectures"),
        (["--set", "num_key_value_heads=3"], "num_attention_heads=4 is no multiple of num_key_value_heads=3"),
        (["--set", "num_attention_heads=6", "--set", "head_dim=null"], "hidden_size=64 is no multiple of 6 heads"),
        (["--set", "vocab_size=258"], "vocab_size=258 has no room for every byte; it must be at least 259"),
        (["--set", "vocab_size"], "'vocab_size' is not KEY=JSON"),
        (["--set", "hidden_act=silu"], "'hidden_act=silu' is not KEY=JSON"),
        (["--shards", "0"], "'0' is no whole number of at least 1"),
        (["--seed", "-1"], "--seed"),
        (["--preset", "huge"], "invalid choice"),
    ],
)
def test_mistakes_are_named(tmp_path, capsys, arguments, words):
    with pytest.raises(SystemExit) as stop:
        tool.main([str(tmp_path / "out"), *arguments])
    assert stop.value.code == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_with_files_is_left_alone(tmp_path, capsys):
    (tmp_path / "mine.txt").touch()
    with pytest.raises(SystemExit):
        tool.main([str(tmp_path)])
    assert "is not empty" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


def test_the_smallest_vocabulary_still_reads_every_byte(tmp_path):
    from tokenizers import Tokenizer

    tool.make_checkpoint(tmp_path / "out", overrides={"vocab_size": 259})
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    ids = tokenizer.encode("héllo 你好<|im_end|>\n").ids
    assert max(ids) == 258 and tokenizer.decode(ids, skip_special_tokens=False) == "héllo 你好<|im_end|>\n"


def test_ctrl_c_leaves_no_weights(monkeypatch, tmp_path):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(tool, "draw", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tool.make_checkpoint(tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
