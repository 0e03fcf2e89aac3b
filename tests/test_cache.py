from __future__ import annotations

import os
import stat
import sys
import warnings
from pathlib import Path

import pytest

from tiny_vllm import cache


@pytest.fixture(autouse=True)
def no_stand_in_yet():
    cache._temporary_root.cache_clear()
    yield
    cache._temporary_root.cache_clear()


def test_the_variable_names_the_root(monkeypatch, tmp_path):
    monkeypatch.setenv("TINY_VLLM_CACHE", str(tmp_path / "mine"))
    assert cache.cache_root() == tmp_path / "mine"
    assert not (tmp_path / "mine").exists()
    monkeypatch.setenv("TINY_VLLM_CACHE", "~/c")
    assert cache.cache_root() == Path.home() / "c"
    monkeypatch.setenv("TINY_VLLM_CACHE", "c")
    assert cache.cache_root() == Path.cwd() / "c"  # a later change of the working folder does not move it


@pytest.mark.skipif(sys.platform != "linux", reason="the XDG specification is Linux's")
def test_the_users_cache_folder(monkeypatch):
    monkeypatch.delenv("TINY_VLLM_CACHE", raising=False)
    monkeypatch.setenv("HOME", "/home/somebody")
    for value, expected in (
        ("/elsewhere", "/elsewhere/tiny-vllm"),
        ("relative", "/home/somebody/.cache/tiny-vllm"),
        ("", "/home/somebody/.cache/tiny-vllm"),
    ):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert cache.cache_root() == Path(expected)


def test_no_home_gives_a_folder_that_falls_back(monkeypatch):
    monkeypatch.delenv("TINY_VLLM_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.warns(UserWarning, match="TINY_VLLM_CACHE"):
        folder = cache.writable_folder(cache.cache_root() / "kernels")
    assert folder.is_dir()


def test_a_writable_folder_is_made(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.writable_folder(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_one_private_stand_in_and_one_warning(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TINY_VLLM_CACHE", str(tmp_path / "file" / "root"))
    with pytest.warns(UserWarning, match=r"file/root cannot be written; using .* Set TINY_VLLM_CACHE") as seen:
        first = cache.writable_folder(cache.cache_root() / "kernels")
        again = cache.writable_folder(cache.cache_root() / "kernels")
        other = cache.writable_folder(cache.cache_root() / "other")
    assert len(seen) == 1
    assert first == again != other and first.parent == other.parent
    if os.name == "posix":
        assert stat.S_IMODE(first.parent.stat().st_mode) == 0o700


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_falls_back(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.warns(UserWarning, match="TINY_VLLM_CACHE"):
        assert cache.writable_folder(tmp_path) != tmp_path
    tmp_path.chmod(0o700)
