"""What a marked region may not hold: ways out of the region, of the language it teaches, or to somebody else's answer.

A list of names, not a sandbox: it says what is wrong before anything runs. What passes runs in a limited process.
"""

from __future__ import annotations

import ast
import re
import textwrap

from tiny_vllm.device.source import strip_comments
from tiny_vllm.grading.windows import code

MAX_REGION, MAX_DEPTH = 8000, 50  # what lies beyond is made to break a compiler
_CUDA_WORDS = """asm extern namespace using std template typeid goto environ system popen fopen freopen fork vfork
    execl execv execve syscall getenv setenv putenv mmap mprotect socket ptrace kill dlopen dlsym"""
_CUDA_PREFIXES = "__asm __attribute __declspec __builtin __pragma _Pragma __FILE __has_include"
_CUDA_NAME = rf"\b(({'|'.join(_CUDA_WORDS.split())})\b|({'|'.join(_CUDA_PREFIXES.split())})\w*)"
_PYTHON_WORDS = """__import__ exec eval compile open input breakpoint globals locals vars getattr setattr delattr
    memoryview sys os io builtins importlib subprocess ctypes pickle"""
_PYTHON_FILES = """load save savez savez_compressed savetxt loadtxt genfromtxt fromfile fromregex tofile memmap dump
    open_memmap DataSource ctypeslib f2py testing lib"""
_PYTHON_NAMES = frozenset(_PYTHON_WORDS.split())
_PYTHON_ATTRIBUTES = frozenset(_PYTHON_FILES.split()) | _PYTHON_NAMES
_INSIDE = re.compile(r"__|(f|tb|gi|cr|ag|co)_\w")  # frames and code objects lead to every other variable
_STRING = re.compile(r'"(?:\\.|[^"\\\n])*"|' + r"'(?:\\.|[^'\\\n])*'")


def refused(body: str, python: bool, skeleton: str) -> str:
    """Why a region is not run, in one clause that names what it holds; "" when it may run.

    skeleton: the file that it will stand in, whose imports it may repeat.
    """
    if "EXERCISE-" in body:
        return "an EXERCISE mark inside the region"
    if len(body) > MAX_REGION:
        return f"{len(body)} characters, where {MAX_REGION} are enough"
    return _refused_python(body, skeleton) if python else refused_cuda(body) or _unbalanced(_plain(body))


def refused_cuda(body: str) -> str:
    """As refused, of a few lines that may open and close brackets: the repair of a fault."""
    plain, rejoins = _plain(body), "which changes how the lines after it read"
    for text, pattern, why in (
        (body, r"\\[ \t]*\r?(\n|$)", f"a backslash at a line's end, {rejoins}"),
        (body, r"\?\?[=/'()!<>-]|%:", f"the alternative spelling {{}}, {rejoins}"),
        (strip_comments(body), r"\b(u8|[uUL])?R\"", "the raw string {}, which may hide marks"),
        (plain, r"#\s*\w*", "{}, a line for the preprocessor"),
        (plain, r"/\*", "a comment without an end"),
        (plain, _CUDA_NAME, "{}"),
        (plain, r"\[\s*\[|(?<![\w>]):\s*:", "{}, an attribute or a name from outside"),
    ):
        if found := re.search(pattern, text):
            return why.format(found[0])
    return ""


def _plain(body: str) -> str:
    """Without what comments and strings hold."""
    return _STRING.sub('""', strip_comments(body))


def _unbalanced(text: str) -> str:
    """Brackets that close what the region did not open would end the function around it."""
    pairs, waiting = {")": "(", "]": "[", "}": "{"}, []
    for mark in re.findall(r"[(){}\[\]]", text):
        if mark in pairs.values():
            waiting.append(mark)
            if len(waiting) > MAX_DEPTH:
                return f"brackets more than {MAX_DEPTH} deep"
        elif not waiting or waiting.pop() != pairs[mark]:
            return f"a {mark} that closes what the region did not open"
    return f"a {waiting[-1]} that it does not close" if waiting else ""


def _refused_python(body: str, skeleton: str) -> str:
    if not code(body, python=True).strip():
        return ""
    indented = body if body.lstrip("\r\n")[:1].isspace() else textwrap.indent(body, "    ")
    try:
        tree = ast.parse(f"if True:\n{indented}")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = (getattr(error, "lineno", None) or 2) - 1
        return f"no Python: {getattr(error, 'msg', error)} (line {line} of the region)"
    block = tree.body[0]
    if len(tree.body) != 1 or not isinstance(block, ast.If) or block.orelse:
        return "a line that leaves the function around it"
    allowed = {name for node in ast.walk(ast.parse(skeleton)) for name in _imports(node)}
    for node in ast.walk(tree):
        if new := [name for name in _imports(node) if name not in allowed]:
            return f"import {new[0]}, which the skeleton lacks"
        if isinstance(node, ast.Name) and (node.id in _PYTHON_NAMES or node.id.startswith("__")):
            return node.id
        if isinstance(node, ast.Attribute) and (node.attr in _PYTHON_ATTRIBUTES or _INSIDE.match(node.attr)):
            return f".{node.attr}"
    return ""


def _imports(node: ast.AST) -> list[str]:
    """What an import brings, as module or module.name."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names]
    return []
