"""Chapter 01 against the safetensors library, and against bits worked out by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from chapters.ch01_checkpoint.stage import bf16_to_float32, read_header, read_tensor
from tiny_vllm.errors import UserError


def test_every_tensor_of_a_checkpoint(tiny_folder):
    for file in sorted(tiny_folder.glob("*.safetensors")):
        with safe_open(file, framework="np") as opened:
            assert sorted(opened.keys()) == sorted(read_header(file)[0])
            for name in opened.keys():  # noqa: SIM118 (not a dict)
                np.testing.assert_array_equal(read_tensor(file, name), opened.get_tensor(name).astype(np.float32))


def test_other_types(tmp_path, rng):
    file = tmp_path / "t.safetensors"
    tensors = {"half": rng.normal(size=(3, 5)).astype(np.float16), "single": rng.normal(size=(2, 1, 7)).astype("f4")}
    save_file(tensors, file, metadata={"format": "np"})
    for name, values in tensors.items():
        np.testing.assert_array_equal(read_tensor(file, name), values.astype(np.float32))


def test_bits_by_hand():
    bits = np.array([0x3F80, 0xC000, 0x4049, 0x0000, 0x8000, 0x7F80, 0x0001], np.uint16)
    expected = np.array([1, -2, 3.140625, 0, -0.0, np.inf, 2.0**-133], np.float32)
    np.testing.assert_array_equal(bf16_to_float32(bits), expected)
    assert np.isnan(bf16_to_float32(np.array([0x7FC0], np.uint16)))[0]


def test_offsets_count_from_the_end_of_the_header(tmp_path):
    header = {"b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}
    text = json.dumps(header).encode() + b"   "
    file = tmp_path / "t.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text + np.array([7, 8, 9], "<f4").tobytes())
    np.testing.assert_array_equal(read_tensor(file, "b"), [8, 9])


def test_mistakes_are_named(tmp_path):
    file = tmp_path / "t.safetensors"
    save_file({"ids": np.arange(3)}, file)
    with pytest.raises(UserError, match="no tensor 'nope'; it has ids"):
        read_tensor(file, "nope")
    with pytest.raises(UserError, match="I64"):
        read_tensor(file, "ids")
