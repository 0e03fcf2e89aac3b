"""Faults of real engines, planted one by one: the named test and the simulation must both notice (`-m deep`).

Each is a change of one piece of text in a copy of the engine, so that the code itself holds no switches.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
POOL, SCHEDULER, LIMITS = "block_pool.py", "scheduler.py", "limits.py"


@dataclass(frozen=True)
class Fault:
    """old -> new in a module of tiny_vllm/engine; killed_by: a test by hand; simulated: the simulation sees it too."""

    name: str
    module: str
    old: str
    new: str
    killed_by: str
    simulated: bool = True


GIVE_UP = "        self.pool.free(request.block_ids)\n"
CACHE = "                self.prefix_cache.cache(request.block_ids, index, token_ids)\n"
CACHE_BEFORE_ENDS = "        if plan is self._newest:\n            self._cache_full_blocks()\n"
TO_FRONT = "        self.waiting.move_to_end(request.request_id, last=False)\n"
YOUNGEST = "youngest = next(reversed(self.running.values()))"
SHARE = (
    "        if self.prefix_cache:\n"
    "            self.prefix_cache.share(shared)  # before allocate, which could give these blocks away\n"
)
ALLOCATE = "        request.block_ids = shared + self.pool.allocate(num_new)\n"
FORGET = "            del self._block[self._key.pop(block)]\n"
LAST_TOKEN = "return 0 if num_tokens >= request.max_num_tokens else num_tokens - request.num_computed_tokens"
SAME_EPOCH = "request is not None and request.epoch == part.epoch"
FINISH = "            self._give_up_blocks(request)\n            request.finish_reason"
EPOCH = "[], 0, 0\n        request.epoch = next(self._epochs)\n"
NEW_BLOCKS = "tuple(request.block_ids[first_new_block:])"

FAULTS = [
    Fault("an abort keeps its blocks", SCHEDULER, FINISH, "            request.finish_reason", "test_abort"),
    Fault("no block is hashed", SCHEDULER, CACHE, "                pass\n", "test_the_last_token_of_a_known_prompt"),
    Fault(
        "blocks are freed before they are hashed",
        SCHEDULER,
        CACHE_BEFORE_ENDS,
        "",
        "test_the_last_token_of_a_known_prompt",
        False,
    ),
    Fault(
        "the epoch stays when blocks are given up", SCHEDULER, EPOCH, "[], 0, 0\n", "test_the_id_of_a_preempted", False
    ),
    Fault(
        "blocks are hashed when planned",
        SCHEDULER,
        "        request.num_in_flight += is_sampled\n",
        "        request.num_in_flight += is_sampled\n        self.plan_hash(request, start, end)\n",
        "test_nothing_is_found_before",
    ),
    Fault(
        "the hit is the whole prompt",
        SCHEDULER,
        "request.tokens_between(0, request.num_tokens - 1)",
        "request.token_ids",
        "test_the_last_token_of_a_known_prompt",
    ),
    Fault(
        "prefix numbers are used again",
        POOL,
        "self._last_prefix += 1",
        "self._last_prefix = len(self._block) + 1",
        "test_random_operations",
    ),
    Fault(
        "a block is found by its own tokens alone",
        POOL,
        "        key = before, tuple(token_ids)\n",
        "        key = ROOT, tuple(token_ids)\n",
        "test_a_prefix_is_found",
    ),
    Fault(
        "token ids are compared by their hash",
        POOL,
        "tuple(token_ids",
        "hash(tuple(token_ids",
        "test_a_collision_is_a_miss",
        simulated=False,
    ),
    Fault(
        "an evicted block stays in the map",
        POOL,
        FORGET,
        "            pass\n",
        "test_an_evicted_block_is_not_found",
    ),
    Fault(
        "a shared block is freed by its first owner",
        POOL,
        "if count > 1:",
        "if block in self._free:",
        "test_a_shared_block_is_free",
    ),
    Fault(
        "the beginning of a sequence is evicted first",
        POOL,
        "in reversed(blocks)",
        "in blocks",
        "test_the_end_of_a_sequence",
        simulated=False,
    ),
    Fault(
        "hits count as free room",
        POOL,
        " - sum(block in self._free for block in blocks)",
        "",
        "test_free_blocks_that_are_about_to_be_shared",
    ),
    Fault(
        "hits are taken after room was made", SCHEDULER, SHARE + ALLOCATE, ALLOCATE + SHARE, "test_a_hit_is_not_evicted"
    ),
    Fault(
        "the oldest is preempted",
        SCHEDULER,
        YOUNGEST,
        "youngest = next(iter(self.running.values()))",
        "test_the_youngest_goes",
    ),
    Fault("the preempted goes to the end of the queue", SCHEDULER, TO_FRONT, "", "test_the_youngest_goes"),
    Fault(
        "the preempted keeps its count",
        SCHEDULER,
        "[], 0, 0\n",
        "[], request.num_computed_tokens, 0\n",
        "test_the_youngest_goes",
    ),
    Fault(
        "the preempted forgets its answer",
        SCHEDULER,
        "        request.num_preemptions += 1\n",
        "        request.num_preemptions += 1\n        request.output_token_ids.clear()\n",
        "test_the_youngest_goes",
    ),
    Fault(
        "the preempted keeps its blocks",
        SCHEDULER,
        GIVE_UP,
        "        request.num_preemptions and self.pool.free(request.block_ids)\n",
        "test_abort",
    ),
    Fault(
        "a resumed request counts as a hit",
        SCHEDULER,
        "if not request.num_preemptions:",
        "if True:",
        "test_resuming_counts",
    ),
    Fault(
        "no room is kept for the next token",
        SCHEDULER,
        "request.num_tokens + 1,",
        "request.num_tokens,",
        "test_blocks_at_multiples",
    ),
    Fault(
        "what needs all free blocks waits for ever",
        SCHEDULER,
        "if num_new > free:",
        "if num_new >= free:",
        "test_a_request_that_the_pool_can_never_hold",
    ),
    Fault(
        "room for a chunk is enough to come in",
        SCHEDULER,
        "self.limits.blocks_for(num_tokens) -",
        "self.limits.blocks_for(1) -",
        "test_a_hit_is_not_evicted",
    ),
    Fault(
        "ids reach whoever has the name now",
        SCHEDULER,
        SAME_EPOCH,
        "request is not None",
        "test_an_id_that_comes_again",
    ),
    Fault(
        "the last token is computed",
        SCHEDULER,
        LAST_TOKEN,
        "return num_tokens - request.num_computed_tokens",
        "test_the_next_step_is_planned",
    ),
    Fault(
        "a chunk draws a token",
        SCHEDULER,
        "is_sampled = end == num_known + request.num_in_flight",
        "is_sampled = True",
        "test_chunk_boundaries",
    ),
    Fault(
        "the budget is for each request",
        SCHEDULER,
        "first_new_block))\n                budget -= count",
        "first_new_block))",
        "test_chunks_come_beside",
    ),
    Fault("one too many runs", SCHEDULER, "len(self.running) < self", "len(self.running) <= self", "test_max_num_seqs"),
    Fault(
        "the whole table is sent each time",
        SCHEDULER,
        NEW_BLOCKS,
        "tuple(request.block_ids)",
        "test_one_request_from_prompt",
    ),
    Fault(
        "a block too few at multiples",
        LIMITS,
        "-(-num_tokens // self.block_size)",
        "num_tokens // self.block_size",
        "test_blocks_at_multiples",
    ),
    Fault(
        "what can never fit is taken in",
        LIMITS,
        "if needed > self.num_blocks:",
        "if False:",
        "test_a_request_that_the_pool_can_never_hold",
    ),
    Fault(
        "a prompt of max_model_len is taken in",
        LIMITS,
        "length < self.max_model_len",
        "length <= self.max_model_len",
        "test_lengths_at_the_limit",
    ),
    Fault(
        "max_model_len does not end an answer",
        LIMITS,
        "+ request.params.max_tokens, self.max_model_len)",
        "+ request.params.max_tokens, 10**9)",
        "test_max_model_len_ends",
    ),
    Fault("ignore_eos is ignored", SCHEDULER, " and not request.params.ignore_eos", "", "test_ends"),
    Fault(
        "the length is looked at before the end",
        SCHEDULER,
        "if ends_sequence or",
        "if ends_sequence and request.num_tokens < self.limits.max_num_tokens(request) or",
        "test_ends",
    ),
]

PLAN_HASH = """

def plan_hash(self, request, start, end):
    size = self.pool.block_size
    for index in range(start // size, end // size):
        if self.prefix_cache and self.pool._prefix[request.block_ids[index]] == -1:
            ids = request.tokens_between(index * size, (index + 1) * size)
            self.prefix_cache.cache(request.block_ids, index, ids + [IN_FLIGHT] * (size - len(ids)))


Scheduler.plan_hash = plan_hash
Scheduler._cache_full_blocks = lambda *_: None
"""


def copy_engine(folder: Path, fault: Fault) -> None:
    """The engine and these tests in `folder`, with the fault in it."""
    shutil.copytree(ROOT / "tiny_vllm", folder / "tiny_vllm", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tests" / "engine").mkdir(parents=True)
    for path in (ROOT / "tests" / "engine").glob("*.py"):
        shutil.copy(path, folder / "tests" / "engine")
    module = folder / "tiny_vllm" / "engine" / fault.module
    source = module.read_text(encoding="utf-8")
    assert fault.old in source, "the code has changed: plant this fault anew"
    source = source.replace(fault.old, fault.new)
    if "hash(tuple(" in fault.new:  # both places where a key is made
        source = source.replace("hash(tuple(token_ids)", "hash(tuple(token_ids))").replace(": end]))", ": end])))")
    if "plan_hash" in fault.new:
        source += PLAN_HASH
    compile(source, fault.module, "exec")
    module.write_text(source, encoding="utf-8")


def failures(folder: Path, file: str, chosen: str = "") -> set[str]:
    """Names of the tests that fail in a copy."""
    command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", ".", "-p", "no:cacheprovider"]
    command += [
        "--import-mode=importlib",
        "-o",
        "pythonpath=.",
        "-o",
        "markers=deep",
        "-m",
        "not deep",
        "-rf",
        "-k",
        chosen,
    ]
    run = subprocess.run([*command, f"tests/engine/{file}"], cwd=folder, capture_output=True, text=True, timeout=120)
    assert run.returncode in (0, 1), run.stdout + run.stderr
    lines = [line.split()[1] for line in run.stdout.splitlines() if line.startswith("FAILED")]
    return {line.partition("::")[2].partition("[")[0] for line in lines}


@pytest.mark.deep
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found(fault, tmp_path):
    copy_engine(tmp_path, fault)
    file = "test_block_pool.py" if fault.module == POOL and "hit_is" not in fault.killed_by else "test_scheduler.py"
    assert failures(tmp_path, file, fault.killed_by), "no test by hand notices"
    if fault.simulated:
        assert failures(tmp_path, "test_scheduler_simulation.py"), "the simulation does not notice"
