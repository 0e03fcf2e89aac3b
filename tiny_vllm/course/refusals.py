"""What a marked region may not hold: ways out of the region, of the language it teaches, or to somebody else's answer.

A list of names, not a sandbox: it says what is wrong before anything runs. What passes runs in a limited process.
"""

from __future__ import annotations

import ast
import re
import textwrap

from tiny_vllm.course.tokens import code
from tiny_vllm.device.source import strip_comments

MAX_REGION, MAX_DEPTH = 8000, 50  # what lies beyond is made to break a compiler
_CUDA_TEXT = """asm extern namespace using std template typeid goto environ system popen fopen freopen fork vfork execl
    execv execve syscall getenv setenv putenv mmap mprotect socket ptrace kill dlopen dlsym"""
_CUDA_WORDS = frozenset(_CUDA_TEXT.split())
_CUDA_PREFIXES = ("__asm", "__attribute", "__declspec", "__builtin", "__pragma", "_Pragma", "__FILE", "__has_include")
_PYTHON_WORDS = """__import__ exec eval compile open input breakpoint globals locals vars getattr setattr delattr
    memoryview sys os io builtins importlib subprocess ctypes pickle"""
_PYTHON_FILES = """load save savez savez_compressed savetxt loadtxt genfromtxt fromfile fromregex tofile memmap dump
    open_memmap DataSource ctypeslib f2py testing lib"""
_PYTHON_NAMES = frozenset(_PYTHON_WORDS.split())
_PYTHON_ATTRIBUTES = frozenset(_PYTHON_FILES.split()) | _PYTHON_NAMES
_FRAMES = re.compile(r"(f|tb|gi|cr|ag|co)_\w+")  # frames and code objects lead to every other variable
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
    if found := re.search(r"\?\?[=/'()!<>-]|%:|\\[ \t]*\r?(\n|$)", body):
        what = "a backslash at a line's end" if found[0].startswith("\\") else f"the alternative spelling {found[0]}"
        return f"{what}, which changes how the lines after it read"
    if found := re.search(r"\b(u8|[uUL])?R\"", strip_comments(body)):
        return f"the raw string {found[0]}, which may hide marks"
    text = _plain(body)
    if found := re.search(r"#\s*\w*", text):
        return f"{found[0]}, a line for the preprocessor"
    if "/*" in text:
        return "a comment without an end"
    for word in re.findall(r"[^\W\d]\w*", text):
        if word in _CUDA_WORDS or word.startswith(_CUDA_PREFIXES):
            return word
    found = re.search(r"\[\s*\[|(?<![\w>]):\s*:", text)
    return f"{found[0]}, an attribute or a name from outside" if found else ""


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
    return next((why for node in ast.walk(tree) if (why := _refused_node(node, allowed))), "")


def _imports(node: ast.AST) -> list[str]:
    """What an import brings, as module or module.name."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names]
    return []


def _refused_node(node: ast.AST, allowed: set[str]) -> str:
    if new := [name for name in _imports(node) if name not in allowed]:
        return f"import {new[0]}, which the skeleton lacks"
    if isinstance(node, ast.Name) and (node.id in _PYTHON_NAMES or node.id.startswith("__")):
        return node.id
    if isinstance(node, ast.Attribute):
        inside = node.attr.startswith("__") or _FRAMES.fullmatch(node.attr)
        return f".{node.attr}" if inside or node.attr in _PYTHON_ATTRIBUTES else ""
    return ""
