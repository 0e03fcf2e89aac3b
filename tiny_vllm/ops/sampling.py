"""Launchers of the sampling kernels: one to three launches a step, whatever the number of rows."""

from __future__ import annotations

import numpy as np

from tiny_vllm.device.base import Device
from tiny_vllm.device.library import KernelLibrary
from tiny_vllm.types import Array

# `struct Row` of kernels/sampling.cuh, which says what each field means; a test holds the two together
ROW = np.dtype(
    [
        ("temperature", np.float32),
        ("seed_low", np.uint32),
        ("seed_high", np.uint32),
        ("index", np.int32),
        ("is_filtered", np.int32),
        ("top_k", np.int32),
        ("top_p", np.float32),
        ("min_p", np.float32),
        ("is_adjusted", np.int32),
        ("repetition_penalty", np.float32),
        ("presence_penalty", np.float32),
        ("frequency_penalty", np.float32),
        ("first_bias", np.int32),
        ("num_biases", np.int32),
        ("slot", np.int32),
        ("num_prompt", np.int32),
        ("num_known", np.int32),
        ("num_tokens", np.int32),
        ("newest", np.int32),
    ]
)
FEW_ROWS = 16  # at most so many: sampling_draw cuts a row smaller, so that its blocks fill more of a GPU
FILTERS_AT_ONCE = 128  # sampling_filter has larger blocks where an SM gets one of them
MAX_COUNTING_BLOCKS = 128  # of sampling_adjust: each has a row of counts
COPIED_TOKENS = 2048  # by a block of sampling_copy


class SamplingKernels:
    """From logits (R,V) float32 and a ROW for each to token ids, in buffers allocated here once.

    At most num_rows rows, num_biases biases over all of them, and num_slots requests in the token history.
    """

    def __init__(
        self, device: Device, num_rows: int, vocab_size: int, num_biases: int, num_slots: int, max_model_len: int
    ) -> None:
        self._device, self._library = device, KernelLibrary(device, np.float32)
        self._on_emulator = device.name == "emulator"  # where a thread that waits costs time
        self.num_rows, self.vocab_size, self.max_model_len = num_rows, vocab_size, max_model_len
        self._rows = device.zeros((num_rows, ROW.itemsize // 4), np.int32)
        self._bias_ids = device.zeros((num_biases,), np.int32)
        self._bias_values = device.zeros((num_biases,), np.float32)
        self.history = device.zeros((num_slots, max_model_len), np.int32)
        self._counts = device.zeros((min(num_rows, MAX_COUNTING_BLOCKS), vocab_size), np.int32)
        self._adjusted = device.zeros((num_rows, vocab_size), np.float32)
        self._lowest_keys, self._last_ids = device.zeros((num_rows,), np.uint32), device.zeros((num_rows,), np.int32)
        self._best, self._num_arrived = device.zeros((num_rows,), np.uint64), device.zeros((num_rows,), np.int32)

    def __call__(self, logits: Array, rows: np.ndarray, biases: list[tuple[int, float]], out: Array) -> None:
        """Launch the draw of out (R,) int32 from logits (R,V), which stay as they are; rows (R,) ROW, on the host."""
        count, vocabulary = logits.shape
        assert vocabulary == self.vocab_size and len(rows) == count <= self.num_rows
        self._device.copy_in(self._rows[:count], rows.view(np.int32).reshape(count, -1))
        if rows["is_adjusted"].any():
            self._adjust(logits, biases)
        self.draw(logits, bool(rows["is_filtered"].any()), out)

    def draw(self, logits: Array, is_filtered: bool, out: Array) -> None:
        """The launches alone, for rows that a call has set: a captured graph can hold them. is_filtered: any row."""
        if is_filtered:
            arguments = (logits, self._adjusted, self._rows, self._lowest_keys, self._last_ids, self.vocab_size)
            few = len(logits) <= FILTERS_AT_ONCE
            self._launch("filter", (len(logits),), 8 if self._on_emulator else 1024 if few else 512, arguments)
        self._draw(logits, out)

    def _adjust(self, logits: Array, biases: list[tuple[int, float]]) -> None:
        if biases:
            ids, values = zip(*biases)
            self._device.copy_in(self._bias_ids[: len(ids)], np.array(ids, np.int32))
            self._device.copy_in(self._bias_values[: len(ids)], np.array(values, np.float32))
        count, vocabulary = logits.shape
        grid = (-(-vocabulary // COPIED_TOKENS), count)
        self._launch("copy", grid, 256, (logits, self._adjusted, self._rows, vocabulary, COPIED_TOKENS), "adjust")
        buffers = (self._adjusted, self._rows, self._bias_ids, self._bias_values, self.history, self._counts)
        threads = 8 if self._on_emulator else 512
        self._launch(
            "adjust", (min(count, len(self._counts)),), threads, (*buffers, count, vocabulary, self.max_model_len)
        )

    def _draw(self, logits: Array, out: Array) -> None:
        count, vocabulary = logits.shape
        tokens_per_block, threads = self._draw_shape(count)
        grid = (-(-vocabulary // tokens_per_block), count)
        filters = (self._adjusted, self._rows, self._lowest_keys, self._last_ids)
        sizes = (vocabulary, tokens_per_block, self.max_model_len)
        arguments = (logits, *filters, self._best, self._num_arrived, out, self.history, *sizes)
        self._launch("draw", grid, threads, arguments)

    def _draw_shape(self, rows: int) -> tuple[int, int]:
        """Tokens, a multiple of four, and threads of a block of sampling_draw."""
        if self._on_emulator:
            return -(-self.vocab_size // 4) * 4, 1
        return (4096, 256) if rows <= FEW_ROWS else (8192, 128)

    def _launch(self, name: str, grid: tuple[int, ...], threads: int, arguments: tuple, file: str = "") -> None:
        self._library.kernel(f"sampling_{file or name}.cu", f"sampling_{name}")(grid, (threads,), arguments)


class LogprobKernel:
    """Log-probabilities by row: of a chosen token, and of up to max_top of the likeliest; at most num_rows rows."""

    def __init__(self, device: Device, num_rows: int, max_top: int) -> None:
        self._device, self._library = device, KernelLibrary(device, np.float32)
        self._threads = 8 if device.name == "emulator" else 1024
        self.num_rows, self.max_top = num_rows, max_top
        self._chosen, self._num_top = (device.zeros((num_rows,), np.int32) for _ in range(2))
        self._ids = device.zeros((num_rows, max_top + 1), np.int32)
        self._logprobs = device.zeros((num_rows, max_top + 1), np.float32)
        self._ranks = device.zeros((num_rows,), np.int32)

    def __call__(self, logits: Array, chosen: list[int], num_top: list[int]) -> tuple[np.ndarray, ...]:
        """logits (R,V), a token id and a number of likeliest for each row; a row of number -1 is passed over.

        On the host: ids (R, max_top + 1) int32, the chosen one first, -1 beyond the vocabulary; their logprobs, of the
        same shape, float32; ranks (R,) int32 of the chosen ones. Only the first 1 + number of a row are set.
        """
        count, vocabulary = logits.shape
        assert count == len(chosen) == len(num_top) <= self.num_rows and max(num_top) <= self.max_top
        self._device.copy_in(self._chosen[:count], np.array(chosen, np.int32))
        self._device.copy_in(self._num_top[:count], np.array(num_top, np.int32))
        results = (self._ids[:count], self._logprobs[:count], self._ranks[:count])
        arguments = (logits, self._chosen, self._num_top, *results, vocabulary, self.max_top + 1)
        kernel = self._library.kernel("sampling_logprobs.cu", "sampling_logprobs")
        kernel((count,), (self._threads,), arguments)
        return tuple(self._device.to_host(each) for each in results)
