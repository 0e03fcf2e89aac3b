"""Faults of real engines, planted in a copy one by one: the named test must notice (`-m deep`)."""

from __future__ import annotations

import pytest

from tests.engine.planting import Fault, check_found, check_unplanted

INPUTS, TABLES, GRAPHS = "engine/step_inputs.py", "engine/block_tables.py", "engine/decode_graphs.py"
ENGINE, DRAWS = "engine/llm_engine.py", "engine/draws.py"
OUTPUT, KERNELS = "engine/output_processor.py", "../kernels/step_inputs.cu"
SCHEDULER, LIMITS = "engine/scheduler.py", "engine/limits.py"
BY_RUNNER, BY_ENGINE, BY_ANSWERS = (
    "engine/test_runner.py",
    "engine/test_llm_engine.py",
    "engine/test_llm_engine_answers.py",
)
BY_ERRORS, BY_LATE, BY_SHARED = (
    "engine/test_llm_engine_errors.py",
    "engine/test_late_writes.py",
    "engine/test_shared_engine.py",
)

PLANNED = """\
                parts.append(self._take(request, count, first_new_block))
                budget -= count
"""
FREE_WHEN_PLANNED = """\
                if self._num_pending(request) == 0:
                    self.pool.free(request.block_ids)
                    request.block_ids = []
"""
FORWARD = "        return self.model.forward(tokens, self.cache, meta, buffers)\n"
WRITE_LATE = """\
        logits = self.model.forward(tokens, self.cache, meta, buffers)
        late = getattr(self, "_late", None)
        self._late = buffers.k.copy(), buffers.v.copy(), meta.slot_mapping.copy()
        if late:
            self.model.ops.write_kv(late[0], late[1], self.cache.layers[-1], late[2])
        return logits
"""
COUNT_IDS = """\
        self._num_generated_tokens += len(updated)
        for answer in updated:
            answer.advance(draw.logprobs.get(answer.request.request_id), self._eos_token_ids)
            if answer.finished:
"""
IN_TEXT = "len(self.tokenizer.encode(answer.snapshot().text, False))"
COUNT_TEXT = COUNT_IDS.partition("\n")[2] + f"                self._num_generated_tokens += {IN_TEXT}\n"


def unlocked(name: str, inside: str, killed_by: str) -> Fault:
    """What SharedEngine does with the lock is done without."""
    old, new = f"with self._lock:\n{inside}", f"if True:\n{inside}"
    return Fault(name, "engine/shared_engine.py", old, new, BY_SHARED, killed_by)


FAULTS = [
    Fault(
        "a slot is taken from the block before at a boundary",
        KERNELS,
        "table[position / block_size]",
        "table[max(position - 1, 0) / block_size]",
        BY_ENGINE,
        "test_lengths_around_a_block",
    ),
    Fault(
        "positions begin anew in each chunk",
        KERNELS,
        "max(length - (end - i), 0)",
        "i - query_start_loc[request]",
        BY_RUNNER,
        "test_chunks_are_the_whole_prompt",
    ),
    Fault(
        "lengths leave out the step's own tokens",
        INPUTS,
        "[part.end for part in parts]",
        "[max(part.start, 1) for part in parts]",
        BY_RUNNER,
        "test_chunks_are_the_whole_prompt",
    ),
    Fault(
        "the row before the last is sampled",
        INPUTS,
        "[end - 1 for part",
        "[max(end - 2, 0) for part",
        BY_RUNNER,
        "test_rows_of_mixed_prefills",
    ),
    Fault(
        "the token in flight is the row's of the plan, not of the draw",
        INPUTS,
        "enumerate(p for p in parts if p.is_sampled)",
        "enumerate(parts)",
        BY_RUNNER,
        "test_inputs_of_a_step",
    ),
    Fault(
        "the token in flight is the first row's",
        KERNELS,
        "last_ids[-1 - tokens[i]]",
        "last_ids[0]",
        BY_ENGINE,
        "test_to_the_very_end_with_graphs and overlapped",
    ),
    Fault(
        "padded rows write to the cache",
        KERNELS,
        "position % block_size : -1",
        "position % block_size : 0",
        BY_ENGINE,
        "test_every_batch_size_with_graphs",
    ),
    Fault(
        "padded rows have a length",
        INPUTS,
        "+ [0] * padding\n        ends",
        "+ [1] * padding\n        ends",
        BY_RUNNER,
        "test_padded_rows_are_nowhere",
    ),
    Fault(
        "a row that was taken away gets only the new blocks",
        TABLES,
        "return 0, table",
        "return part.first_new_block, list(part.new_block_ids)",
        BY_RUNNER,
        "test_more_requests_than_rows",
    ),
    Fault(
        "a row that the step needs goes",
        TABLES,
        " if request_id not in needed]",
        "]",
        BY_RUNNER,
        "test_more_requests_than_rows",
    ),
    Fault(
        "tables stay in the order of their rows",
        KERNELS,
        "step_tables + (size_t)request * width",
        "step_tables + (size_t)rows[request] * width",
        BY_RUNNER,
        "test_decode_in_changing_company",
    ),
    Fault(
        "a table's last block is not gathered",
        KERNELS,
        "(seq_lens[request] + block_size - 1) / block_size",
        "seq_lens[request] / block_size",
        BY_ENGINE,
        "test_lengths_around_a_block",
    ),
    Fault(
        "only the first part of a long table travels",
        INPUTS,
        "(-(-count // FEW_THREADS),)",
        "(1,)",
        BY_RUNNER,
        "test_every_table_anew",
    ),
    Fault(
        "a graph is believed unseen",
        GRAPHS,
        "if not np.allclose(self._ends(logits), expected, TOLERANCE, TOLERANCE, equal_nan=True):",
        "if False:",
        BY_ENGINE,
        "test_an_operation_outside_the_graph",
    ),
    Fault(
        "a failed capture is tried again and again",
        GRAPHS,
        "        self.sizes = []\n",
        "",
        BY_ENGINE,
        "test_a_step_that_cannot_be_captured",
    ),
    Fault(
        "graphs of one size serve all",
        GRAPHS,
        "graph, logits = self._graphs[size]",
        "graph, logits = next(iter(self._graphs.values()))",
        BY_ENGINE,
        "test_every_batch_size_with_graphs",
    ),
    Fault(
        "the overlapped loop takes in a step before it has drawn",
        ENGINE,
        "        updated = self._take_in(parts)\n        self._in_flight = ahead or",
        "        updated = self._take_in(parts) if ahead is None else []\n        self._in_flight = ahead or",
        BY_ENGINE,
        "test_to_the_very_end_with_graphs and overlapped",
    ),
    Fault(
        "an abort does not reach the scheduler",
        ENGINE,
        "                    parts.scheduler.abort(answer.request.request_id)\n",
        "",
        BY_ENGINE,
        "test_abort_in_every_state",
    ),
    Fault(
        "an error leaves its requests behind",
        ENGINE,
        "            parts.reset()\n",
        "",
        BY_ENGINE,
        "test_an_error_in_a_step",
    ),
    Fault(
        "an error leaves the block tables as they are",
        "engine/parts.py",
        "        self.runner.inputs.tables.reset()\n",
        "",
        BY_ERRORS,
        "test_an_interrupt_that_loses_a_row",
    ),
    Fault(
        "an error leaves the prefix cache as it is",
        "engine/scheduler.py",
        "            self.pool.reset()\n",
        "            pass\n",
        BY_ERRORS,
        "test_an_interrupt_at_any_line",
    ),
    Fault(
        "a sampler's ids are believed",
        DRAWS,
        "not all(0 <= token_id < vocab_size for token_id in ids)",
        "False",
        BY_ERRORS,
        "test_a_sampler_that_gives_no_ids",
    ),
    Fault(
        "a pool's blocks are believed",
        "engine/runner.py",
        "        _check_blocks(plan, self.cache.num_blocks)\n",
        "",
        BY_ERRORS,
        "test_a_pool_that_hands_out_blocks",
    ),
    Fault(
        "nobody looks for lost blocks",
        ENGINE,
        "        assert parts.pool.num_free == self._num_blocks, f",
        "        assert True, f",
        BY_ENGINE,
        "test_lost_blocks_are_seen",
    ),
    Fault(
        "a stop string ends the text and not the request",
        ENGINE,
        "                    parts.finish(answer.request)\n",
        "                    pass\n",
        BY_ANSWERS,
        "test_a_stop_string_among_others",
    ),
    Fault(
        "ids drawn on the host do not reach the device",
        DRAWS,
        "        self._runner.device.copy_in(self._runner.last_ids[: len(ids)], np.array(ids, np.int32))\n",
        "",
        BY_ANSWERS,
        "test_logprobs_are_the_oracles and overlapped",
    ),
    Fault(
        "the log-probabilities of a prompt are one off",
        DRAWS,
        "[prompt[position + 1] for position in few]",
        "[prompt[position] for position in few]",
        BY_ANSWERS,
        "test_prompt_logprobs",
    ),
    Fault(
        "the rows of a prompt are those of the first request",
        DRAWS,
        "            first_row += len(part.token_ids)\n",
        "",
        BY_ANSWERS,
        "test_prompt_logprobs",
    ),
    Fault(
        "n answers share a seed",
        OUTPUT,
        "(seed + index) % (MAX_SEED + 1)",
        "seed",
        BY_ANSWERS,
        "test_n_answers",
    ),
    Fault(
        "the token that ends an answer is in its text",
        OUTPUT,
        "token_ids[:-1] if hides_last else token_ids",
        "token_ids",
        BY_ANSWERS,
        "test_a_token_that_ends_the_answer",
    ),
    Fault(
        "what can never fit is taken in",
        LIMITS,
        "if needed > self.num_blocks:",
        "if False:",
        BY_ENGINE,
        "test_a_request_that_never_fits",
    ),
    Fault(
        "what fills the pool is refused",
        LIMITS,
        "if needed > self.num_blocks:",
        "if needed >= self.num_blocks:",
        BY_ENGINE,
        "test_a_pool_for_one",
    ),
    Fault(
        "who preempts itself goes on",
        SCHEDULER,
        "            if youngest is request:\n                return False\n",
        "",
        BY_ENGINE,
        "test_preempted_in_mid_decode",
    ),
    Fault(
        "a prompt of max_model_len is taken in",
        "engine/inputs.py",
        "if count >= self.max_model_len:",
        "if count > self.max_model_len:",
        BY_ENGINE,
        "test_the_longest_prompt",
    ),
    Fault(
        "the last block has no place in a table",
        INPUTS,
        "-(-max_model_len // block_size)",
        "max_model_len // block_size",
        BY_ENGINE,
        "test_to_the_very_end_with_graphs",
    ),
    Fault(
        "the new blocks of a request that comes back are not told",
        SCHEDULER,
        "self._take(request, count, first_new_block=0)",
        "self._take(request, count, len(request.block_ids) if request.num_preemptions else 0)",
        BY_ENGINE,
        "test_preempted_when_half_prefilled",
    ),
    Fault(
        "a resumed request counts as a hit",
        SCHEDULER,
        "if not request.num_preemptions:",
        "if True:",
        BY_ENGINE,
        "test_preempted_in_mid_decode",
    ),
    Fault(
        "a hit is the whole prompt",
        SCHEDULER,
        "request.tokens_between(0, request.num_tokens - 1)",
        "request.token_ids",
        BY_ENGINE,
        "test_the_same_prompt_again",
    ),
    Fault(
        "an evicted block is still found",
        "engine/block_pool.py",
        "            del self._block[self._key.pop(block)]\n",
        "            pass\n",
        BY_ENGINE,
        "test_evicted_blocks_are_forgotten",
    ),
    Fault(
        "ids reach whoever has the name now",
        SCHEDULER,
        "request is not None and request.epoch == part.epoch",
        "request is not None",
        BY_ENGINE,
        "test_an_id_comes_again_while_its_last_step_is_in_flight",
    ),
    Fault(
        "a draw depends on the row",
        "engine/sampling_rows.py",
        "[index_of(request) for request in self.requests]",
        "[index_of(request) + row for row, request in enumerate(self.requests)]",
        BY_ENGINE,
        "test_a_seeded_request_draws_the_same_in_any_company",
    ),
    Fault(
        "the length that a refusal names leaves no room for its tables",
        "engine/memory_check.py",
        "each = cached + _bytes_per_position(config, size)",
        "each = cached",
        "engine/test_memory_check.py",
        "test_a_length_that_is_named_fits",
    ),
    Fault(
        "blocks go back when the last step is planned",
        SCHEDULER,
        PLANNED,
        PLANNED + FREE_WHEN_PLANNED,
        BY_LATE,
        "test_the_next_owners_keys and length",
    ),
    Fault(
        "a step writes its last keys once more after the next one, as from another stream",
        "engine/runner.py",
        FORWARD,
        WRITE_LATE,
        BY_LATE,
        "test_the_next_owners_keys and eos-overlapped",
    ),
    unlocked(
        "a request comes in without the lock",
        "                    self._sinks[request.request_id] = take",
        "test_who_comes_in and add",
    ),
    unlocked("a step runs without the lock", "                if until():", "test_who_comes_in and step-overlapped"),
    unlocked(
        "a stream ends without the lock", "                for request in requests:", "test_who_comes_in and abort"
    ),
    unlocked(
        "statistics are read without the lock", "            return self.engine.stats()", "test_who_comes_in and stats"
    ),
    unlocked("an LLM is closed without the lock", "            self.engine.close()", "test_who_comes_in and close"),
    Fault(
        "an output goes to the thread that ran the step",
        "engine/shared_engine.py",
        "self._sinks[output.request_id](output)",
        "self._sinks[request.request_id](output)",
        BY_SHARED,
        "test_an_output_reaches",
    ),
    Fault(
        "an answer's tokens are counted in its text",
        ENGINE,
        COUNT_IDS,
        COUNT_TEXT,
        BY_ANSWERS,
        "test_tokens_are_counted_by_their_ids",
    ),
    Fault(
        "max_tokens bounds what the text encodes to",
        ENGINE,
        "            if answer.finished:\n                if answer.request",
        f"            if answer.finished or {IN_TEXT} >= answer.request.params.max_tokens:\n"
        "                if answer.request",
        BY_ANSWERS,
        "test_tokens_are_counted_by_their_ids",
    ),
    Fault(
        "the ids of a prompt are made anew from its text",
        "engine/inputs.py",
        'and "prompt_token_ids" in prompt:',
        'and "prompt_token_ids" in prompt and text is None:',
        BY_ANSWERS,
        "test_tokens_are_counted_by_their_ids",
    ),
]


@pytest.mark.deep
@pytest.mark.parametrize("file", sorted({fault.file for fault in FAULTS}))
def test_a_copy_without_a_fault_passes(file, tmp_path, request):
    check_unplanted(tmp_path, FAULTS, file, request.config.getoption("--device"))


@pytest.mark.deep
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found(fault, tmp_path, request):
    check_found(tmp_path, fault, request.config.getoption("--device"))
