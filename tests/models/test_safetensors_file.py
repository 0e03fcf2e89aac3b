from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from tiny_vllm.models.safetensors_file import LazyTensor, write_safetensors


def pieces(array: np.ndarray, size: int) -> LazyTensor:
    flat = array.ravel()
    return LazyTensor(array.shape, lambda: (flat[i : i + size] for i in range(0, flat.size, size)))


@pytest.mark.parametrize("workers", [1, 3])
def test_the_library_reads_what_was_written(rng, tmp_path, workers):
    arrays = {
        f"t{i}": rng.standard_normal(shape).astype(ml_dtypes.bfloat16)
        for i, shape in enumerate([(5, 7), (1,), (33, 3, 2), (1000,), (2, 1)])
    }
    path = tmp_path / "model.safetensors"
    written: list[int] = []
    write_safetensors(path, {name: pieces(a, 11) for name, a in arrays.items()}, workers, written.append)
    loaded = load_file(path)
    assert loaded.keys() == arrays.keys()
    for name, array in arrays.items():
        assert loaded[name].dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(loaded[name], array)
    assert sorted(written) == sorted(a.nbytes for a in arrays.values())
    with safe_open(path, "np") as file:
        assert file.metadata() == {"format": "pt"}


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_interruption_leaves_nothing(tmp_path, error):
    def chunks():
        yield np.zeros(3, ml_dtypes.bfloat16)
        raise error

    tensors = {"a": pieces(np.ones((4,), ml_dtypes.bfloat16), 4), "b": LazyTensor((6,), chunks)}
    with pytest.raises(error):
        write_safetensors(tmp_path / "model.safetensors", tensors)
    assert list(tmp_path.iterdir()) == []


def test_chunks_that_do_not_add_up_are_caught(tmp_path):
    with pytest.raises(AssertionError, match="add up"):
        write_safetensors(tmp_path / "x", {"a": LazyTensor((5,), lambda: [np.zeros(4, ml_dtypes.bfloat16)])})
    assert list(tmp_path.iterdir()) == []
