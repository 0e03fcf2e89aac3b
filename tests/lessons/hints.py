"""How much of an answer a hint gives away: the share of the answer's tokens that stand in the hint."""

from __future__ import annotations

import re
from collections import Counter

# Level 1 asks a question, level 2 says what to do, level 3 is the answer with a hole
BANDS = ((0.0, 0.10), (0.0, 0.30), (0.40, 0.85))
LONGEST_SECOND = 40  # words


KEYWORDS = {"for", "if", "else", "while", "return", "int", "float", "in", "and", "or", "not", "from", "is"}


def code_tokens(text: str, python: bool) -> list[str]:
    """Names, numbers and operators of CUDA C or Python, as they stand; no comments, brackets or keywords, which are
    English words too."""
    code = re.sub(r"#[^\n]*" if python else r"//[^\n]*", " ", text)
    found = re.findall(r"[A-Za-z_]\w*|\d+(?:\.\d+)?f?|[-+*/%<>=!&|^]=|<<=?|>>=?|//|\+\+|--|&&|\|\||[-+*/%<>=&|^]", code)
    return [token for token in found if token not in KEYWORDS and set(token) != {"_"}]


def overlap(hint: str, answer: str, python: bool) -> float:
    """Tokens of the answer that the hint holds, counted with repetition, over the tokens of the answer."""
    wanted, given = Counter(code_tokens(answer, python)), Counter(code_tokens(hint, python))
    return sum((wanted & given).values()) / max(1, sum(wanted.values()))
