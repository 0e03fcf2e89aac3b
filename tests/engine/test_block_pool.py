"""The block pool: cases by hand, and random operations beside a model that searches lists."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from tiny_vllm.engine.block_pool import PrefixCachingBlockPool
from tiny_vllm.errors import UserError
from tiny_vllm.types import BlockPool, PrefixCache

A, B, C = [1, 2], [3, 4], [5, 6]  # blocks of two tokens


def filled(pool: PrefixCachingBlockPool, token_ids: Sequence[int], shared: int = 0) -> list[int]:
    """Blocks of a request that has computed token_ids, the first `shared` of them found in the cache."""
    blocks = pool.lookup(token_ids[: shared * pool.block_size])
    assert len(blocks) == shared
    pool.share(blocks)
    blocks = blocks + pool.allocate(-(-len(token_ids) // pool.block_size) - shared)
    for i in range(shared, len(token_ids) // pool.block_size):
        pool.cache(blocks, i, token_ids[i * pool.block_size : (i + 1) * pool.block_size])
    return blocks


def test_it_is_what_the_scheduler_asks_for():
    pool: BlockPool = PrefixCachingBlockPool(1, 1)
    assert isinstance(pool, PrefixCache)


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 16), (4, 0), (-1, 16), (2.0, 16), (4, "16"), (True, 1)])
def test_sizes_are_whole_numbers_of_at_least_one(num_blocks, block_size):
    with pytest.raises(UserError, match=r"^(num_blocks|block_size) is .*; give a whole number of at least 1$"):
        PrefixCachingBlockPool(num_blocks, block_size)


def test_blocks_go_out_and_come_back():
    pool = PrefixCachingBlockPool(3, 2)
    first, second = pool.allocate(2), pool.allocate(1)
    assert sorted(first + second) == [0, 1, 2] and pool.num_free == 0
    pool.check([first, second])
    pool.free(first)
    assert pool.num_free == 2
    pool.check([second])
    with pytest.raises(AssertionError, match="3 blocks asked for, 2 free"):
        pool.allocate(3)
    with pytest.raises(AssertionError, match="is freed by someone who does not own it"):
        pool.free(first)


def test_a_prefix_is_found_in_whole_blocks_and_to_the_first_difference():
    pool = PrefixCachingBlockPool(8, 2)
    blocks = filled(pool, A + B + C[:1])
    assert pool.lookup(A + B + C) == blocks[:2]  # the third block is not full
    assert pool.lookup(A + B) == pool.lookup([*A, *B, 9]) == blocks[:2]
    assert pool.lookup(A + B[:1]) == pool.lookup(A + C) == blocks[:1]
    assert pool.lookup(B) == pool.lookup([]) == []  # B is known behind A only
    pool.free(blocks)
    assert pool.lookup(A + B) == blocks[:2] and pool.num_free == 8


def test_a_shared_block_is_free_when_its_last_owner_goes():
    pool = PrefixCachingBlockPool(4, 2)
    first = filled(pool, A + B)
    second = filled(pool, A + C, shared=1)
    assert first[0] == second[0] and first[1] != second[1]
    pool.check([first, second])
    pool.free(first)
    assert pool.num_free == 2
    pool.check([second])
    pool.free(second)
    assert pool.num_free == 4
    pool.check([])


def test_free_blocks_that_are_about_to_be_shared_do_not_count():
    pool = PrefixCachingBlockPool(3, 2)
    pool.free(filled(pool, A + B))
    assert pool.num_free == 3 and pool.num_free_beside(pool.lookup(A + B)) == 1
    owner = filled(pool, A, shared=1)
    assert pool.num_free == 2 and pool.num_free_beside(pool.lookup(A + B)) == 1  # A is owned, B is free
    pool.check([owner])


def test_what_lookup_cannot_find_is_lost_first_then_the_least_recently_used_prefix_from_its_end():
    pool = PrefixCachingBlockPool(5, 2)
    first, second = filled(pool, A + B), filled(pool, C)
    third = pool.allocate(1)
    pool.free(first)
    pool.free(second)
    pool.free(third)
    touched = pool.lookup(A)
    pool.share(touched)  # A is used again, B is not
    pool.free(touched)
    order = pool.allocate(5)
    assert set(order[:2]) == {*third, ({0, 1, 2, 3, 4} - {*first, *second, *third}).pop()}
    assert order[2:] == [first[1], second[0], first[0]]


def test_the_end_of_a_sequence_is_lost_before_its_beginning():
    pool = PrefixCachingBlockPool(3, 2)
    first, second, third = blocks = filled(pool, A + B + C)
    pool.free(blocks)
    assert pool.allocate(1) == [third] and pool.lookup(A + B + C) == [first, second]
    assert pool.allocate(1) == [second] and pool.lookup(A + B + C) == [first]


def test_an_evicted_block_is_not_found():
    """hazards: evicted block still in the cache map / used while being evicted."""
    pool = PrefixCachingBlockPool(2, 2)
    pool.free(filled(pool, A + B))
    [block] = pool.allocate(1)  # B's, since the end of a sequence goes first
    assert pool.lookup(A + B) == [1 - block]
    other = pool.allocate(1)
    assert pool.lookup(A + B) == pool.lookup(A) == []
    pool.check([[block], other])


def test_a_block_behind_an_evicted_one_is_not_found_behind_its_successor():
    """A prefix number is never used twice: B was computed behind A, and must not be found behind C in A's block."""
    pool = PrefixCachingBlockPool(3, 2)
    first, second = filled(pool, A), filled(pool, A + B)  # A twice: B stands behind second's copy
    pool.free(first)
    pool.free(pool.allocate(1))
    filled(pool, C)
    assert pool.lookup(C + B) != [*pool.lookup(C), second[1]]
    assert pool.lookup(C + B) == pool.lookup(C)


def test_the_same_tokens_computed_twice_are_found_once():
    pool = PrefixCachingBlockPool(6, 2)
    first = filled(pool, A)
    second = filled(pool, A + B)  # both ran at once: A was not known yet when the second began
    assert pool.lookup(A + B) == [first[0], second[1]]  # the same keys and values, whoever wrote them
    pool.check([first, second])
    pool.free(second)
    assert pool.allocate(1) == [second[0]]  # the copy is worth nothing


class Colliding(int):
    """A token id whose hash is that of every other one."""

    def __hash__(self) -> int:
        return 7


def test_a_collision_is_a_miss():
    one, two = [Colliding(1), Colliding(2)], [Colliding(3), Colliding(4)]
    assert hash(tuple(one)) == hash(tuple(two))
    pool = PrefixCachingBlockPool(4, 2)
    block = filled(pool, one)
    assert pool.lookup(two) == [] and pool.lookup(one) == block
    assert pool.lookup(one + two) == block


def test_without_prefix_caching_nothing_is_found():
    pool = PrefixCachingBlockPool(3, 2, enable_prefix_caching=False)
    blocks = filled(pool, A + B)
    assert pool.lookup(A + B) == []
    pool.free(blocks)
    assert pool.lookup(A + B) == [] and pool.num_free == 3


def test_cache_takes_full_blocks_in_order():
    pool = PrefixCachingBlockPool(4, 2)
    blocks = pool.allocate(3)
    with pytest.raises(AssertionError, match="out of order"):
        pool.cache(blocks, 1, B)
    with pytest.raises(AssertionError, match="not full"):
        pool.cache(blocks, 0, A[:1])
    pool.cache(blocks, 0, A)
    with pytest.raises(AssertionError, match="or twice"):
        pool.cache(blocks, 0, A)
    pool.free(blocks)
    with pytest.raises(AssertionError, match="or free"):
        pool.cache(blocks, 1, B)
    with pytest.raises(AssertionError, match="holds no cached prefix"):
        pool.share(blocks[1:2])


@pytest.mark.parametrize("fault", ["leak", "double", "foreign", "map"])
def test_check_finds_what_is_off(fault):
    pool = PrefixCachingBlockPool(4, 2)
    blocks = filled(pool, A + B[:1])
    pool.check([blocks])
    owned = {"leak": [], "double": [blocks, blocks], "foreign": [[*blocks, 3]]}.get(fault, [blocks])
    if fault == "map":
        pool._block.clear()
    with pytest.raises(AssertionError):
        pool.check(owned)


@dataclass(eq=False)
class Known:
    """A block that can be found: its tokens and the Known block before it."""

    block: int
    before: Known | None
    token_ids: list[int]


@dataclass
class Owner:
    """A sequence in the model: its blocks, its tokens, and the Known that each full block stands for."""

    blocks: list[int]
    token_ids: list[int]
    chain: list[Known] = field(default_factory=list)


class Model:
    """The pool by brute force: lists that are searched, ages that are compared."""

    def __init__(self, num_blocks: int, size: int) -> None:
        self.size, self.now = size, 0
        self.freed_at = {block: -block for block in range(num_blocks)}
        self.owners: list[Owner] = []
        self.known: list[Known] = []
        self.num_evictions = 0

    def findable(self, block: int) -> bool:
        return any(known.block == block for known in self.known)

    def lookup(self, token_ids: list[int]) -> list[Known]:
        chain: list[Known] = []
        for i in range(len(token_ids) // self.size):
            before, tokens = chain[-1] if chain else None, token_ids[i * self.size : (i + 1) * self.size]
            match = [known for known in self.known if known.before is before and known.token_ids == tokens]
            if not match:
                break
            chain += match
        return chain

    def allocate(self) -> int:
        """Of the blocks that hold nothing the one freed last; else the one freed first."""
        empty = [block for block in self.freed_at if not self.findable(block)]
        if empty:
            block = max(empty, key=self.freed_at.__getitem__)
        else:
            block = min(self.freed_at, key=self.freed_at.__getitem__)
            self.num_evictions += 1
        del self.freed_at[block]
        self.known = [known for known in self.known if known.block != block]
        return block

    def cache(self, owner: Owner) -> int:
        """The owner's next full block; its index."""
        i = len(owner.chain)
        before, tokens = owner.chain[-1] if owner.chain else None, owner.token_ids[i * self.size : (i + 1) * self.size]
        match = [known for known in self.known if known.before is before and known.token_ids == tokens]
        known = match[0] if match else Known(owner.blocks[i], before, tokens)
        self.known += [] if match else [known]
        owner.chain.append(known)
        return i

    def free(self, owner: Owner) -> None:
        self.owners.remove(owner)
        for block in reversed(owner.blocks):
            self.now += 1
            if not any(block in other.blocks for other in self.owners):
                self.freed_at[block] = self.now


def grow(pool: PrefixCachingBlockPool, model: Model, owner: Owner, token_ids: list[int], rng: random.Random) -> None:
    """More tokens for an owner, as far as there are blocks; some of the full blocks are told, in order."""
    for token_id in token_ids:
        if len(owner.token_ids) == len(owner.blocks) * model.size:
            if not model.freed_at:
                break
            [block] = pool.allocate(1)
            assert block == model.allocate()
            owner.blocks.append(block)
        owner.token_ids.append(token_id)
    while len(owner.chain) < len(owner.token_ids) // model.size and rng.random() < 0.8:
        i = model.cache(owner)
        pool.cache(owner.blocks, i, owner.token_ids[i * model.size : (i + 1) * model.size])


@pytest.mark.parametrize("size", [1, 2, 3, 16, 64])
def test_random_operations_as_the_model_does_them(size):
    """hazards: eviction with page size > 1. Blocks handed out, found and freed are the model's, one by one."""
    rng = random.Random(size)
    hits = evictions = 0
    for num_blocks in (1, 2, 3, 5, 9, 14):
        pool, model = PrefixCachingBlockPool(num_blocks, size), Model(num_blocks, size)
        prompts = [[rng.randrange(3) for _ in range(size * 4 + 1)] for _ in range(3)]
        for _ in range(400):
            kind = rng.random()
            if kind < 0.45:
                prompt = rng.choice(prompts)[: rng.randrange(1, size * 4 + 2)]
                chain = model.lookup(prompt)
                found = pool.lookup(prompt)
                assert found == [known.block for known in chain]
                before = len(model.freed_at)
                pool.share(found)
                for block in found:
                    model.freed_at.pop(block, None)
                hits += len(found)
                owner = Owner(found, prompt[: len(found) * size], chain)
                model.owners.append(owner)
                assert pool.num_free == len(model.freed_at) <= before
                grow(pool, model, owner, prompt[len(owner.token_ids) :], rng)
            elif model.owners and kind < 0.7:
                more = [rng.randrange(2) for _ in range(rng.randrange(size + 2))]
                grow(pool, model, rng.choice(model.owners), more, rng)
            elif model.owners:
                owner = rng.choice(model.owners)
                pool.free(owner.blocks)
                model.free(owner)
            assert pool.num_free == len(model.freed_at)
            pool.check([owner.blocks for owner in model.owners])
        evictions += model.num_evictions
    assert hits > 50 and evictions > 20
