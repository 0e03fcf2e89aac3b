"""`python -m chapters.ch08_first_token PROMPT`: an answer without a cache, every token from the whole text so far."""

from __future__ import annotations

import sys

from chapters._run import Session, main, speak
from chapters.ch08_first_token.stage import FirstTokenOps, generate


def run(session: Session) -> None:
    speed = speak(session, session.tokens(FirstTokenOps, generate))
    print(f"chapter 08, no cache: {speed} ({session.device.description}, {session.dtype})", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(run, "ch08_first_token"))
