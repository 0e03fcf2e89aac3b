"""Faults of the attention kernels and of what feeds them, planted one by one: the named test must notice (`deep`)."""

from __future__ import annotations

import pytest

from tests.engine.planting import Fault, check_found, check_unplanted

DECODE, PREFILL, TILES = "paged_decode.cu", "paged_prefill.cu", "kv_tiles.cuh"
STATES, WARP, PLAIN = "softmax_states.cuh", "warp_rows.cuh", "attention.cu"
WRITE, INPUTS = "write_kv.cu", "step_inputs.cu"
LAUNCH, GROUPS = "../tiny_vllm/ops/paged_attention.py", "test_groups"
BY_PAGED, BY_PLAIN = "ops/test_paged_attention.py", "ops/test_attention.py"
BY_WRITE, BY_RUNNER = "ops/test_write_kv.py", "engine/test_runner.py"
BY_ENGINE = "engine/test_llm_engine_answers.py"
BOUNDARY, CHUNKS = "test_decode_at_every_boundary", "test_prefill_at_every_boundary"
RISE, NOBODY = "test_scores_that_rise_and_fall", "test_rows_that_nobody_owns_are_zeros"
ALONE, COMPANY = "test_each_kernel_leaves_the_others_rows_alone", "test_decode_in_changing_company"


def fault(name: str, kernel: str, old: str, new: str, file: str, killed_by: str) -> Fault:
    return Fault(name, f"../kernels/{kernel}", old, new, file, killed_by)


DECODE_FAULTS = [
    ("a key after the last one is seen", "lane_t() + e < count ?", "lane_t() + e <= count ?", BOUNDARY),
    ("what lies behind the last value weighs in", "= key < count ?", "= true ?", BOUNDARY),
    ("a raised maximum leaves the sum", "        softmax.sum *= shrink;\n", "", RISE),
    ("lanes of a head differ in the maximum", "fmaxf(top, __shfl_xor_sync(~0u, top, 2))", "top", RISE),
    ("only 32 pages are looked up", "if (i % 32 == 0 && i > 0)", "if (false)", "test_a_warp_with_very_many_pages"),
    ("the end is counted a page at a time", "count -= walk.stride * PAGE", "count -= PAGE", "test_long_contexts"),
    ("chunks are taken for lone tokens", "rows != 1 || ", "", ALONE),
    ("the first row that nobody owns stays", "(int r = split; r <", "(int r = split + 1; r <", NOBODY),
    ("all groups read the first heads", "(kv_head * group + lane_g())", "(kv_head + lane_g())", "test_groups"),
    ("the last page's split has none", "(seq_len + PAGE * warps - 1) / (PAGE", "seq_len / (PAGE", "test_splits"),
]
STATES_FAULTS = [
    ("the last state counts for those that are not there", "= i < count ?", "= true ?", "test_splits"),
    ("states are added as they are", "exp2f(maxima[i] - maximum)", "1.0f", RISE),
    ("a counter is left as it is", "        if (*flag) *arrived = 0;", "", "test_splits"),
    ("the last split is not waited for", "arrived, 1) == count - 1", "arrived, 1) == count - 2", "test_splits"),
    ("no keys are 0 / 0", "sum == 0.0f ? 0.0f : value / sum", "value / sum", "test_steps"),
]
PREFILL_FAULTS = [
    ("a later span forgets those before it", "? context + first + count :", "? context + count :", CHUNKS),
    ("a tile is taken whole too early", "span.first + 1) / KEYS", "span.first + KEYS) / KEYS", CHUNKS),
    ("too low a reference stays", "|| walk > 0) break", "|| true) break", RISE),
    ("the second walk adds to the first", "        rows.clear();\n        pages", "        pages", RISE),
    ("a row without keys is 0 / 0", "rows.last_key(r) < 0 ? 0 :", "false ? 0 :", "test_more_new_tokens_than_keys"),
    ("a span of the second request begins too early", "- request) * tokens", ") * tokens", CHUNKS),
]
OTHER_FAULTS = [
    ("rows are divided by a little less", LAUNCH, "65536 // self._group + 1", "65536 // self._group", BY_PAGED, GROUPS),
    ("slots are divided by a little more", LAUNCH, "-(-(2**32) // tokens_a_block)", "2**25", BY_PAGED, GROUPS),
    ("q comes as it is", PREFILL, "    scale_q(shared, scale);\n", "", BY_PAGED, "test_steps"),
    ("a request's last tile has four pages", TILES, "min(i * KEYS_A_COPY / PAGE, last)", "0", BY_PAGED, CHUNKS),
    ("pages are looked up a tile late", TILES, "look_up(j + 2)", "look_up(j + 1)", BY_PAGED, "test_long_contexts"),
    ("a tile is read too early", TILES, "        cp_async_wait<0>();\n", "", BY_PAGED, "test_steps"),
    ("a tile holds what lies behind the end", TILES, "A_COPY < left;\n", "A_COPY >= 0;\n", BY_PAGED, CHUNKS),
    ("a token does not see itself", WARP, "% 2 > rows.last_key(r)", "% 2 >= rows.last_key(r)", BY_PAGED, "test_steps"),
    ("the lowest score is the reference", WARP, "= fminf(m[0]", "= fmaxf(m[0]", BY_PAGED, "test_steps"),
    ("a token sees the one after it", PLAIN, "- 1 - token;", "- 2 - token;", BY_PLAIN, "test_steps"),
    (
        "earlier tiles keep their weight",
        PLAIN,
        "        sum *= shrink;\n",
        "",
        BY_PLAIN,
        "test_rising_and_falling_scores",
    ),
    ("all read the first table", PLAIN, "(size_t)request * table_width + ", "", BY_PLAIN, "test_steps"),
    ("a padded row is written", WRITE, "if (slot < 0)", "if (slot < -1)", BY_WRITE, "test_slots"),
    (
        "a value lies beside its key",
        WRITE,
        "(size_t)block_size * head_dim;  //",
        "head_dim;  //",
        BY_WRITE,
        "test_slots",
    ),
    (
        "rows of values are dense",
        WRITE,
        "v += (size_t)token * v_stride",
        "v += (size_t)token * head_dim",
        BY_WRITE,
        "test_slots",
    ),
    (
        "new blocks go to the first tables",
        INPUTS,
        "tables[places[i]]",
        "tables[i]",
        BY_RUNNER,
        "test_more_requests_than_rows",
    ),
    ("tables are those of the first rows", INPUTS, "(size_t)rows[request]", "(size_t)request", BY_RUNNER, COMPANY),
    (
        "the first token in flight is unknown",
        INPUTS,
        "tokens[i] < 0",
        "tokens[i] < -1",
        BY_ENGINE,
        "test_penalties_know",
    ),
]
FAULTS = [
    *(fault(name, DECODE, old, new, BY_PAGED, killed_by) for name, old, new, killed_by in DECODE_FAULTS),
    *(fault(name, STATES, old, new, BY_PAGED, killed_by) for name, old, new, killed_by in STATES_FAULTS),
    *(fault(name, PREFILL, old, new, BY_PAGED, killed_by) for name, old, new, killed_by in PREFILL_FAULTS),
    *(fault(*each) for each in OTHER_FAULTS),
]


@pytest.mark.deep
def test_a_copy_without_a_fault_passes(tmp_path, request):
    """The quickest file stands for the others, which the suite itself runs."""
    check_unplanted(tmp_path, FAULTS, BY_WRITE, request.config.getoption("--device"))


@pytest.mark.deep
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found(fault, tmp_path, request):
    check_found(tmp_path, fault, request.config.getoption("--device"))
