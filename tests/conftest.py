"""Options and fixtures that every test shares."""

from __future__ import annotations

import os

# One BLAS thread and one emulator worker each: `pytest -n 2` fills two cores without fighting over them.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TINY_VLLM_WORKERS"):
    os.environ.setdefault(name, "1")

from pathlib import Path

import numpy as np
import pytest

DATA = Path(__file__).parent / "data"
TINY = sorted(p.name for p in (DATA / "tiny").iterdir())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", choices=("emulator", "cuda"), default="emulator", help="where kernels run")
    parser.addoption(
        "--impl",
        default="solution",
        help="whose answers tests/chapters/test_cases.py checks: solution, work, or a folder",
    )


def pytest_configure(config: pytest.Config) -> None:
    """`--device cuda` without a GPU: one sentence, not an error in each test."""
    from tiny_vllm.device import get_device
    from tiny_vllm.errors import UserError

    try:
        get_device(config.getoption("--device"))
    except UserError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_report_header(config: pytest.Config) -> list[str]:
    """What a reader's own files replace: a failure may be theirs."""
    from tiny_vllm.device.source import default_overlay

    mine = sorted(p for p in default_overlay()[0].rglob("*.cu*") if p.is_file())
    return [f"your own files stand in: {', '.join(map(str, mine))}"] if mine else []


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest):
    from tiny_vllm.device import get_device

    return get_device(request.config.getoption("--device"))


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """The same numbers for the same test, other numbers for another."""
    return np.random.default_rng(list(request.node.nodeid.encode()))


@pytest.fixture(params=TINY)
def tiny_folder(request: pytest.FixtureRequest) -> Path:
    """Each of the eight tiny checkpoints with independent goldens."""
    return DATA / "tiny" / request.param


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """The built-in real model (135M), fetched once into the user's cache; a test that needs it is skipped offline."""
    from tiny_vllm.errors import UserError
    from tiny_vllm.models.smollm2 import ensure_smollm2

    try:
        return ensure_smollm2(progress=False)
    except UserError as error:
        if os.environ.get("CI"):
            pytest.fail(f"the built-in model must be there in CI: {error}")
        pytest.skip(f"the built-in model cannot be had: {error}")
