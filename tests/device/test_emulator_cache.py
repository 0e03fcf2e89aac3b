"""Where compiled kernels are kept, and what makes them be compiled again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from tiny_vllm import cache as caches
from tiny_vllm.device.emulator import RawKernel, build, compiler
from tiny_vllm.errors import DeviceError

CODE = 'extern "C" __global__ void k(int* x) { x[threadIdx.x] = VALUE; }'


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("TINY_VLLM_CACHE", str(tmp_path))
    return tmp_path / "emulator"


@pytest.fixture(autouse=True)
def no_stand_in_yet():
    caches._temporary_root.cache_clear()
    yield
    caches._temporary_root.cache_clear()


def run(value: int, *options: str) -> None:
    out = np.zeros(3, np.int32)
    RawKernel(CODE, "k", (f"-DVALUE={value}", *options))((1,), (3,), (out,))
    assert (out == value).all()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_compiled_once(cache, monkeypatch):
    run(4)
    before = names(cache)
    monkeypatch.setattr(build, "_compile_into", None)  # a second compilation would fail
    run(4)
    assert names(cache) == before and all(name.endswith(".so") for name in before)


def test_the_key_holds_all_that_matters(monkeypatch):
    one = compiler.find_compiler()
    key = build.cache_key(one, "text", ["-DA"])
    other = compiler.Compiler(one.command, one.version + " patched")
    others = [
        build.cache_key(one, "text2", ["-DA"]),
        build.cache_key(one, "text", ["-DB"]),
        build.cache_key(other, "text", ["-DA"]),
    ]
    monkeypatch.setattr(build, "header_digest", lambda: "another header")
    others.append(build.cache_key(one, "text", ["-DA"]))
    monkeypatch.undo()
    monkeypatch.setattr(build, "cpu_fingerprint", lambda: "another CPU")
    others.append(build.cache_key(one, "text", ["-DA"]))
    assert len({key, *others}) == 6


def test_a_changed_header_is_noticed(tmp_path, monkeypatch):
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "a.h").write_text("1")
    monkeypatch.setattr(compiler, "CPP", tmp_path)
    before = compiler.header_digest.__wrapped__()
    (tmp_path / "include" / "a.h").write_text("2")
    assert compiler.header_digest.__wrapped__() != before


def test_eight_processes_at_once(cache):
    script = (
        "import numpy as np\nfrom tiny_vllm.device.emulator import RawKernel\n"
        f"x = np.zeros(3, np.int32); RawKernel({CODE!r}, 'k', ('-DVALUE=8',))((1,), (3,), (x,)); assert (x == 8).all()"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    children = [subprocess.Popen([sys.executable, "-c", script], env=environment) for _ in range(8)]
    assert [child.wait() for child in children] == [0] * 8
    assert len(names(cache)) == 2 and all(name.endswith(".so") for name in names(cache))  # the guard, the kernel


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("TINY_VLLM_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.warns(UserWarning, match=r"cannot be written[^$]*TINY_VLLM_CACHE"):
        run(5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once is enough
        run(6)


def test_a_disk_that_is_full_while_compiling(cache, monkeypatch):
    whole = build._compile_into

    def full(library, *rest):
        if library.is_relative_to(cache):
            raise OSError(28, "No space left on device")
        return whole(library, *rest)

    monkeypatch.setattr(build, "_compile_into", full)
    with pytest.warns(UserWarning, match="cannot be written"):
        run(7)


def test_no_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("TINY_VLLM_CXX", raising=False)
    monkeypatch.setitem(sys.modules, "ziglang", None)
    compiler._find.cache_clear()
    with pytest.raises(DeviceError, match=r"no C\+\+ compiler found: install g\+\+ .*pip install ziglang"):
        compiler.find_compiler()
    monkeypatch.setenv("TINY_VLLM_CXX", "no-such-compiler -O3")
    with pytest.raises(DeviceError, match="TINY_VLLM_CXX is 'no-such-compiler -O3'"):
        compiler.find_compiler()


def test_zig_is_the_last_choice(monkeypatch, tmp_path, capsys):
    """A package that stands in for ziglang and writes down how it was called."""
    package = tmp_path / "site" / "ziglang"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    say = "import os, sys; print('clang version 22.1', *sys.argv[1:], os.environ.get('ZIG_GLOBAL_CACHE_DIR'))"
    (package / "__main__.py").write_text(say)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.setenv("TINY_VLLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ZIG_GLOBAL_CACHE_DIR", "")
    monkeypatch.delenv("TINY_VLLM_CXX", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert not compiler.find_compiler().is_zig or not shutil.which("g++")
    monkeypatch.setenv("PATH", str(tmp_path))
    zig = compiler.find_compiler()
    assert (zig.command, zig.major) == ((sys.executable, "-m", "ziglang", "c++"), 22)
    assert zig.description == "zig c++ (clang 22)"
    assert "-Werror=frame-larger-than" in zig.kernel_flags() and "-fno-finite-loops" in zig.kernel_flags()
    kept = tmp_path / "cache" / "zig"
    assert zig.run(["-c", "x.cpp"]).stdout == f"clang version 22.1 c++ -c x.cpp {kept}\n"
    assert capsys.readouterr().err == "tiny-vllm: zig builds its C++ library first, once: a minute or two\n"
    (kept / "o").mkdir()
    zig.run(["-c", "x.cpp"])
    assert capsys.readouterr().err == ""


def test_a_chosen_compiler_with_arguments(monkeypatch):
    monkeypatch.setenv("TINY_VLLM_CXX", "g++ -DFROM_COMMAND=3")
    out = np.zeros(1, np.int32)
    RawKernel('extern "C" __global__ void k(int* x) { x[0] = FROM_COMMAND; }', "k")((1,), (1,), (out,))
    assert out[0] == 3


@pytest.mark.parametrize("size", [0, 100, 4096, 9000])
def test_half_a_library_is_compiled_again(cache, size):
    """What a full disk or a power cut leaves: the loader raises for some sizes, for others it ends the process."""
    run(1)
    [library] = [cache / name for name in names(cache) if "guard_run" not in (cache / name).read_text("latin-1")]
    os.truncate(library, size)
    run(1)
    assert size < library.stat().st_size


@pytest.mark.parametrize("chosen", ["  ", "'", "'g++"])
def test_a_compiler_that_is_no_command(monkeypatch, chosen):
    monkeypatch.setenv("TINY_VLLM_CXX", chosen)
    with pytest.raises(DeviceError, match=r"TINY_VLLM_CXX is .*name another, or unset it"):
        compiler.find_compiler()


def test_text_beyond_ascii_where_the_locale_is_ascii(tmp_path):
    code = (
        "import numpy as np; from tiny_vllm.device.emulator import RawKernel; "
        "RawKernel('// \\u00e9\\nextern \"C\" __global__ void k(int* x) { x[0] = 7; }', 'k')((1,), (1,), "
        "(np.zeros(1, np.int32),))"
    )
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "TINY_VLLM_CACHE": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env={**os.environ, **ascii_only}, check=True)
