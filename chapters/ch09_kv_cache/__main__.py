"""`python -m chapters.ch09_kv_cache PROMPT`: an answer with a KV cache, and chapter 08's speed beside it."""

from __future__ import annotations

import sys

from chapters._run import Session, main, measure, speak
from chapters.ch08_first_token import stage as ch08
from chapters.ch09_kv_cache.stage import KVCacheOps, generate

FEW = 4  # tokens are enough to see chapter 08's speed


def run(session: Session) -> None:
    speed = speak(session, session.tokens(KVCacheOps, generate))
    before = measure(session.tokens(ch08.FirstTokenOps, ch08.generate, min(FEW, session.max_tokens)))
    print(f"chapter 09, KV cache: {speed} ({session.device.description}, {session.dtype})", file=sys.stderr)
    print(f"chapter 08, no cache: {before}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(run, "ch09_kv_cache"))
