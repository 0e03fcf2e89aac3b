"""The blocks of the KV cache: who owns them, which of them hold a prefix worth keeping, which is given away next.

Kwon et al., 2023 (PagedAttention); prefix caching and least-recently-used eviction as in vLLM.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from tiny_vllm.errors import UserError

ROOT = 0  # the prefix of length zero
UNKNOWN = -1  # the prefix of a block that is not full, or whose content nobody has told yet

Key = tuple[int, tuple[int, ...]]


class PrefixCachingBlockPool:
    """Hands out blocks, counts references, keeps full blocks of freed requests until their room is needed.

    A block is found by (the prefix before it, its token ids). Prefixes are numbered as they are cached and a number is
    never used twice, so the number stands for all tokens before the block, and the dictionary compares the token ids
    themselves: a hash collision costs time, never a wrong hit.
    """

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool = True) -> None:
        for name, value in (("num_blocks", num_blocks), ("block_size", block_size)):
            if type(value) is not int or value < 1:
                raise UserError(f"{name} is {value!r}; give a whole number of at least 1")
        self.num_blocks, self.block_size, self.enable_prefix_caching = num_blocks, block_size, enable_prefix_caching
        self.reset()

    def reset(self) -> None:
        """All blocks are free, and no prefix is known."""
        self._references = [0] * self.num_blocks
        self._empty = list(range(self.num_blocks))[::-1]  # free, and lookup cannot find them; given away from the end
        self._free: OrderedDict[int, None] = OrderedDict()  # the other free ones, the next one to give away first
        self._prefix = [UNKNOWN] * self.num_blocks  # the number of the prefix that ends with this block
        self._key: dict[int, Key] = {}  # for blocks that lookup can find
        self._block: dict[Key, int] = {}  # and back
        self._last_prefix = ROOT

    @property
    def num_free(self) -> int:
        """Blocks that nobody owns, those that hold a cached prefix included."""
        return len(self._empty) + len(self._free)

    def num_free_beside(self, blocks: Sequence[int]) -> int:
        """Blocks that could still be allocated once these are shared."""
        return self.num_free - sum(block in self._free for block in blocks)

    def allocate(self, count: int) -> list[int]:
        """`count` blocks for one owner: empty ones, then those least recently used, whose prefixes are forgotten."""
        assert count <= self.num_free, f"{count} blocks asked for, {self.num_free} free"
        num_kept = max(len(self._empty) - count, 0)
        blocks = self._empty[num_kept:][::-1]
        del self._empty[num_kept:]
        while len(blocks) < count:
            block, _ = self._free.popitem(last=False)
            del self._block[self._key.pop(block)]
            blocks.append(block)
        references, prefix = self._references, self._prefix
        for block in blocks:
            references[block] = 1
            prefix[block] = UNKNOWN
        return blocks

    def free(self, blocks: Sequence[int]) -> None:
        """Give up one reference to each block. The end of a sequence is given away before its beginning."""
        references, known = self._references, self._key
        for block in reversed(blocks):
            count = references[block]
            assert count > 0, f"block {block} is freed by someone who does not own it"
            references[block] = count - 1
            if count > 1:
                continue
            if block in known:
                self._free[block] = None
            else:
                self._empty.append(block)  # the next one to give away: what lookup cannot find costs nothing to lose

    def lookup(self, token_ids: Sequence[int]) -> list[int]:
        """The blocks of the longest cached prefix of token_ids, in whole blocks; takes no reference."""
        blocks: list[int] = []
        prefix = ROOT
        for end in range(self.block_size, len(token_ids) + 1, self.block_size):
            block = self._block.get((prefix, tuple(token_ids[end - self.block_size : end])))
            if block is None:
                break
            blocks.append(block)
            prefix = self._prefix[block]
        return blocks

    def share(self, blocks: Sequence[int]) -> None:
        """Take a reference to each of these blocks, which lookup has found."""
        for block in blocks:
            assert block in self._key, f"block {block} holds no cached prefix"
            self._free.pop(block, None)
            self._references[block] += 1

    def cache(self, blocks: Sequence[int], index: int, token_ids: Sequence[int]) -> None:
        """Block `index` of a sequence is full and holds token_ids: from now on lookup finds it. Called in their order.

        If another block holds the same tokens after the same prefix, lookup goes on finding that one.
        """
        if not self.enable_prefix_caching:
            return
        block, before = blocks[index], self._prefix[blocks[index - 1]] if index else ROOT
        assert len(token_ids) == self.block_size and self._references[block] > 0, f"block {block} is not full, or free"
        assert before != UNKNOWN and self._prefix[block] == UNKNOWN, f"block {block} is cached out of order, or twice"
        key = before, tuple(token_ids)
        if key in self._block:
            self._prefix[block] = self._prefix[self._block[key]]
            return
        self._last_prefix += 1
        self._prefix[block], self._key[block], self._block[key] = self._last_prefix, key, block

    def check(self, owned: Iterable[Sequence[int]]) -> None:
        """Free, cached and owned blocks are all blocks, each owner counted once; AssertionError says what is off.

        owned: the block table of each request. Cached here are blocks that lookup finds and nobody owns.
        """
        owners = Counter(block for blocks in owned for block in blocks)
        free = {*self._empty, *self._free}
        assert len(free) == self.num_free, "a block is free twice"
        for block in range(self.num_blocks):
            held, counted = owners[block], self._references[block]
            assert held == counted, f"block {block}: {held} owners, {counted} references"
            assert (held == 0) == (block in free), f"block {block}: {held} owners, free: {block in free}"
            assert held <= 1 or self._prefix[block] != UNKNOWN, f"block {block}: {held} owners and no known content"
        cached, empty = len(self._free), len(self._empty)
        known = self._key.keys()
        assert self._free.keys() <= known and not known & set(self._empty), "a free block is in the wrong place"
        total = empty + cached + len(owners)
        assert total == self.num_blocks, f"{empty} free + {cached} cached + {len(owners)} owned of {self.num_blocks}"
        assert {block: key for key, block in self._block.items()} == self._key, "the two maps of prefixes differ"
        assert len(set(self._block.values())) == len(self._block), "one block stands for two prefixes"
