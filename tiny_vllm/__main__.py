"""`python -m tiny_vllm` is the command tiny-vllm."""

import sys

from tiny_vllm.cli import main

if __name__ == "__main__":
    sys.exit(main())
