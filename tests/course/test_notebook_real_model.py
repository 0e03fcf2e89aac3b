"""The model that judges ops: against the oracle, and against a change that it must notice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tiny_vllm.course.notebook.real_model import load_model, replaced
from tiny_vllm.reference import ops as numpy_ops
from tiny_vllm.reference.llama import Oracle

TINY = Path(__file__).parents[1] / "data" / "tiny" / "tiny-odd"
IDS = [3, 14, 1, 5, 9, 2, 6]


@pytest.fixture(scope="module")
def model():
    return load_model(str(TINY))


@pytest.fixture(scope="module")
def oracle():
    return Oracle(TINY)


def test_logits_and_tokens_are_the_oracles(model, oracle):
    np.testing.assert_allclose(model.logits(IDS), oracle.logits(IDS)[-1], rtol=1e-4, atol=1e-5)
    assert model.generate(IDS, 5) == oracle.greedy(IDS, 5)
    steps = list(model.steps(IDS, 3))
    np.testing.assert_array_equal(steps[0], model.logits(IDS), err_msg="a later step does not write over it")


def test_a_replaced_op_is_called_for_every_norm(model):
    called = []

    def norm(x, weight, eps):
        called.append(x.shape)
        return numpy_ops.rms_norm(x, weight, eps)

    np.testing.assert_array_equal(model.logits(IDS, replaced(model.ops, rms_norm=norm)), model.logits(IDS))
    layers = model.config.num_hidden_layers
    assert len(called) == 2 * layers + 1 and called[-1] == (1, model.config.hidden_size)


def test_a_wrong_epsilon_shows_in_the_logits(model):
    wrong = replaced(model.ops, rms_norm=lambda x, weight, eps: numpy_ops.rms_norm(x, weight, 0.01))
    assert np.abs(model.logits(IDS, wrong) - model.logits(IDS)).max() > 1e-3


def test_an_op_that_works_in_place(model):
    """rope has no out: what the function returns goes over q and k."""

    def rope(q, k, positions, table):
        return numpy_ops.rope(q, positions, table), numpy_ops.rope(k, positions, table)

    np.testing.assert_array_equal(model.logits(IDS, replaced(model.ops, rope=rope)), model.logits(IDS))
    still = replaced(model.ops, rope=lambda q, k, positions, table: (q, k))
    assert np.abs(model.logits(IDS, still) - model.logits(IDS)).max() > 1e-3
