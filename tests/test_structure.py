"""The shape of the repository: floors, sizes, names that must not appear."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# An import points to a lower floor or stays within its own entry; the longest prefix of a module's name counts.
FLOORS = {
    "tiny_vllm.errors": 0,
    "tiny_vllm.sampling_params": 0.5,
    "tiny_vllm.types": 1,
    "tiny_vllm.cache": 1,
    "tiny_vllm.device": 2,
    "tiny_vllm.sandbox": 3,
    "tiny_vllm.ops.buffers": 3,
    "tiny_vllm.ops.base": 4,
    "tiny_vllm.reference": 5,
    "tiny_vllm.ops": 6,
    "tiny_vllm.models": 7,
    "tiny_vllm.engine": 8,
    "tiny_vllm.llm": 9,
    "tiny_vllm.course": 10.1,  # asks the package for its version
    "tiny_vllm.grading": 10.15,
    "tiny_vllm.server": 10,
    "tiny_vllm.bench": 10.2,  # runs LLM, and the chapters' rungs
    "tiny_vllm.cli_bench_table": 10.5,
    "tiny_vllm.cli_bench_start": 10.6,
    "tiny_vllm.doctor": 11,  # asks the package for its version
    "tiny_vllm.cli_doctor": 12,
    "tiny_vllm.cli_fetch": 12,
    "tiny_vllm.cli_check": 12,
    "tiny_vllm.cli_course": 12,
    "tiny_vllm.cli_engine": 10.5,
    "tiny_vllm.cli_bench_ops": 10.5,
    "tiny_vllm.cli_bench": 11,
    "tiny_vllm.cli_generate": 11,
    "tiny_vllm.cli": 13,
    "tiny_vllm.__main__": 14,
    "tiny_vllm": 10,  # the package's own __init__ offers LLM
}
CHAPTER_MAY_IMPORT = (
    "tiny_vllm.errors",
    "tiny_vllm.types",
    "tiny_vllm.device",
    "tiny_vllm.ops.base",
    "tiny_vllm.ops.buffers",
    "tiny_vllm.reference",
    "tiny_vllm.models",
)
MODULE_LINES, FUNCTION_LINES = 250, 60
# The classes of one letter keep these patterns from finding themselves.
MACHINE_PATH = re.compile(r"(?<![\w.~}/)-])/(wor[k]|roo[t])/")
REGISTRY_HOST = re.compile(r"\b(pypi[.]org|pythonhosted[.]org|npmjs[.](org|com)|deb[.]debian[.]org|anaconda[.]org)")
FILLER = re.compile(
    r"\b(in this chapter we|let's|dive|explore|journey|leverage|powerful|crucial|essential|seamless|robust"
    r"|under the hood|important to note|simply|just|easy|easily|obviously|not only)\b|\w!(\s|$)",
    re.IGNORECASE,
)


def repository_files() -> list[Path]:
    """Files that git tracks or would track; without git, all files outside dot folders."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout.split("\0")
        paths = [ROOT / name for name in names if name]
    except (OSError, subprocess.CalledProcessError):
        folders = [p for p in ROOT.iterdir() if not p.name.startswith(".") and p.name != "work"]
        paths = [p for folder in folders for p in [folder, *folder.rglob("*")] if "__pycache__" not in p.parts]
    return sorted(p for p in paths if p.is_file())


FILES = repository_files()


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


PYTHON = {module_name(p): p for p in FILES if p.suffix == ".py"}
ENGINE = {name: path for name, path in PYTHON.items() if name.split(".")[0] == "tiny_vllm"}
CHAPTERS = {name: path for name, path in PYTHON.items() if name.split(".")[0] == "chapters"}


def imports(tree: ast.AST, package: str) -> Iterator[tuple[int, str]]:
    """(line, full module name) of every import in the file, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield node.lineno, full if full in PYTHON else base


def prefix(name: str) -> str:
    """The key of FLOORS that holds this module."""
    parts = name.split(".")
    return next(key for i in range(len(parts), 0, -1) if (key := ".".join(parts[:i])) in FLOORS)


def imports_of(name: str, path: Path, source: str) -> Iterator[tuple[int, str]]:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    return imports(ast.parse(source), package)


def floor_faults(name: str, path: Path, source: str) -> list[str]:
    """Imports of a module of tiny_vllm that point sideways or up, or to a chapter."""
    own, faults = prefix(name), []
    for line, target in imports_of(name, path, source):
        if target.split(".")[0] in ("chapters", "tests", "tools"):
            faults.append(f"{name}:{line} imports {target}")
        elif target.split(".")[0] == "tiny_vllm":
            theirs = prefix(target)
            if theirs != own and FLOORS[theirs] >= FLOORS[own] and name != "tiny_vllm":
                faults.append(f"{name}:{line} (floor {FLOORS[own]}) imports {target} (floor {FLOORS[theirs]})")
    return faults


def chapter_number(name: str) -> int | None:
    found = re.match(r"chapters\.ch(\d\d)", name)
    return int(found[1]) if found else None


def chapter_faults(name: str, path: Path, source: str) -> list[str]:
    """Imports of a chapter that reach a later chapter, or a part of the engine that it may not know."""
    own, faults = chapter_number(name), []
    for line, target in imports_of(name, path, source):
        theirs = chapter_number(target)
        if theirs is not None and own is not None and theirs > own:
            faults.append(f"{name}:{line} imports the later {target}")
        if target.split(".")[0] == "tiny_vllm" and not allowed_in_chapter(target, own):
            faults.append(f"{name}:{line} imports {target}")
    return faults


def allowed_in_chapter(target: str, chapter: int | None) -> bool:
    if chapter is not None and chapter >= 15 and target in ("tiny_vllm", "tiny_vllm.llm"):
        return True
    return any(target == allowed or target.startswith(allowed + ".") for allowed in CHAPTER_MAY_IMPORT)


def long_functions(source: str) -> list[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
    lengths = {f"{f.name} (line {f.lineno})": (f.end_lineno or f.lineno) - f.lineno + 1 for f in functions}
    return [f"{name}: {length} lines" for name, length in lengths.items() if length > FUNCTION_LINES]


def read_text(path: Path) -> str | None:
    """The file's text, or None for a binary file."""
    data = path.read_bytes()
    if b"\0" in data[:8192]:
        return None
    return data.decode("utf-8", errors="replace")


@pytest.mark.parametrize("name", sorted(ENGINE))
def test_imports_point_down(name: str):
    path = ENGINE[name]
    assert floor_faults(name, path, path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("name", sorted(CHAPTERS))
def test_chapters_import_no_later_chapter_and_no_engine(name: str):
    path = CHAPTERS[name]
    assert chapter_faults(name, path, path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("tiny_vllm.device.base", "from tiny_vllm.models.config import ModelConfig"),
        ("tiny_vllm.device.base", "def f():\n    from tiny_vllm import models"),
        ("tiny_vllm.device.base", "from ..engine import runner"),
        ("tiny_vllm.types", "import tiny_vllm.device"),
        ("tiny_vllm.models.config", "from tiny_vllm import LLM"),
        ("tiny_vllm.engine.runner", "import chapters.ch03_rms_norm"),
        ("tiny_vllm.ops.base", "from tiny_vllm.ops.plain import TunedOps"),
        ("tiny_vllm.course.check", "from tiny_vllm.cli import main"),
    ],
)
def test_an_import_that_points_up_is_found(name: str, source: str):
    assert len(floor_faults(name, Path("x.py"), source)) == 1


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("chapters.ch03_rms_norm.stage", "from chapters.ch04_rope import stage"),
        ("chapters.ch03_rms_norm.stage", "from tiny_vllm.engine.runner import Runner"),
        ("chapters.ch03_rms_norm.stage", "from tiny_vllm.ops.plain import TunedOps"),
        ("chapters.ch09_kv_cache.stage", "from tiny_vllm import LLM"),
    ],
)
def test_a_chapter_that_reaches_too_far_is_found(name: str, source: str):
    assert len(chapter_faults(name, Path("x.py"), source)) == 1
    assert chapter_faults("chapters.ch15_engine.stage", Path("x.py"), "from tiny_vllm import LLM") == []


@pytest.mark.parametrize("name", sorted(ENGINE))
def test_modules_and_functions_are_short(name: str):
    source = ENGINE[name].read_text(encoding="utf-8")
    assert len(source.splitlines()) <= MODULE_LINES
    assert long_functions(source) == []


def test_a_long_function_is_found():
    assert long_functions("def f():\n" + "    pass\n" * FUNCTION_LINES) == [f"f (line 1): {FUNCTION_LINES + 1} lines"]


def test_no_machine_path_and_no_registry_host():
    found = []
    for path in FILES:
        for number, line in enumerate((read_text(path) or "").splitlines(), 1):
            if MACHINE_PATH.search(line) or REGISTRY_HOST.search(line):
                found.append(f"{relative(path)}:{number}: {line.strip()[:120]}")
    assert found == []


def test_the_patterns_find_what_they_should():
    assert MACHINE_PATH.search("cd /wor" + "k/main") and MACHINE_PATH.search("'/roo" + "t/.cache'")
    assert not MACHINE_PATH.search("tiny-vllm/work/ch03_rms_norm") and not MACHINE_PATH.search("${HERE}/work/x")
    assert REGISTRY_HOST.search("https://pyp" + "i.org/simple")


@pytest.mark.parametrize("path", [p for p in FILES if p.suffix in (".cu", ".cuh")], ids=relative)
def test_a_cuda_file_begins_with_its_own_path(path: Path):
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    assert re.match(rf"// {re.escape(relative(path))}(?!\w)", first), first


DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("path", DOCUMENTS, ids=relative)
def test_documents_hold_no_filler(path: Path):
    text = re.sub(r"```.*?```|`[^`\n]*`", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert [found.group().strip() for found in FILLER.finditer(text)] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=relative)
def test_links_between_documents_lead_somewhere(path: Path):
    text = path.read_text(encoding="utf-8")
    targets = [t.partition("#")[0] for t in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in t]
    assert [t for t in targets if t and not (path.parent / t).exists()] == []
