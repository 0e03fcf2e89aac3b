"""Faults of the attention kernels and of what feeds them, planted one by one: the named test must notice (`deep`)."""

from __future__ import annotations

import pytest

from tests.engine.planting import Fault, check_found, check_unplanted

DECODE, PREFILL, WGMMA = "paged_decode.cu", "paged_prefill.cu", "paged_prefill_wgmma.cu"
BLOCK, WALK, TILES = "prefill_block.cuh", "prefill_walk.cuh", "kv_tiles.cuh"
STATES, WARP, WARPGROUP, PLAIN = "softmax_states.cuh", "warp_rows.cuh", "warpgroup_rows.cuh", "attention.cu"
WRITE, INPUTS = "write_kv.cu", "step_inputs.cu"
LAUNCH, GROUPS = "../tiny_vllm/ops/paged_attention.py", "test_groups"
BY_PAGED, BY_PLAIN = "ops/test_paged_attention.py", "ops/test_attention.py"
BY_WRITE, BY_RUNNER = "ops/test_write_kv.py", "engine/test_runner.py"
BY_ENGINE = "engine/test_llm_engine_answers.py"
BOUNDARY, CHUNKS = "test_decode_at_every_boundary", "test_prefill_at_every_boundary"
FAR, MORE_NEW = "test_scores_that_are_all_far_from_zero", "test_more_new_tokens_than_keys"
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
    ("a later span forgets those before it", BLOCK, "seq_len - length + first", "seq_len - length", CHUNKS),
    ("a tile is taken whole too early", WALK, "(span.last_key + 1) / KEYS", "(span.last_key + KEYS) / KEYS", CHUNKS),
    ("too low a reference stays", PREFILL, "|| walk > 0) break", "|| true) break", RISE),
    ("the second walk adds to the first", PREFILL, "        rows.clear();\n        pages", "        pages", RISE),
    ("a row without keys is 0 / 0", PREFILL, "rows.last_key(r) < 0 ? 0 :", "false ? 0 :", MORE_NEW),
    ("a span of the second request begins too early", BLOCK, "- request) * tokens", ") * tokens", CHUNKS),
    ("q comes as it is", PREFILL, "    scale_q(shared, scale);\n", "", "test_steps"),
    ("a request's last tile has all its pages", TILES, "min(first + i * STRIDE, last)", "0", CHUNKS),
    ("pages are looked up a tile late", TILES, "look_up(j + 2)", "look_up(j + 1)", "test_long_contexts"),
    ("a tile is read too early", TILES, "        cp_async_wait<0>();\n", "", "test_steps"),
    ("a tile holds what lies behind the end", TILES, "+ first < seq_len;", "+ first >= 0;", CHUNKS),
    ("a token does not see itself", WARP, "% 2 > rows.last_key(r)", "% 2 >= rows.last_key(r)", "test_steps"),
    ("the lowest score is the reference", WARP, "= fminf(m[0]", "= fmaxf(m[0]", "test_steps"),
]
WGMMA_FAULTS = [
    ("a token does not see itself", WARPGROUP, "% 2 > rows.last_key(e", "% 2 >= rows.last_key(e", "test_steps"),
    ("both rows of a lane have one sum", WARPGROUP, "rows.sum[i % 2] +=", "rows.sum[0] +=", "test_steps"),
    (
        "a sum is that of a lane",
        WARPGROUP,
        "            sum[r] += __shfl_xor_sync(~0u, sum[r], 2);\n",
        "",
        "test_steps",
    ),
    ("infinite weights stay", WARPGROUP, " || sum[r] > LARGEST", "", FAR),
    ("weights of nothing stay", WARPGROUP, "sum[r] < SMALLEST || ", "", FAR),
    ("the lowest score is the reference", WARPGROUP, "= fminf(rows.minus_m", "= fmaxf(rows.minus_m", FAR),
    ("the second half of a head is the first", WARPGROUP, "panel * (KEYS * PLACE_BYTES)", "0 * panel", "test_steps"),
    ("a score is read too early", WARPGROUP, "piece);\n    wgmma_wait<0>();\n    if", "piece);\n    if", "test_steps"),
    ("a warpgroup's rows are the first ones", WGMMA, "same_for_all(threadIdx.x / 128)", "0", CHUNKS),
    ("what was copied is not announced", WGMMA, "    shared_writes_for_wgmma();\n", "", "test_steps"),
    (
        "a tile is overwritten while it is read",
        WGMMA,
        "    if (SLOTS == 2) wgmma_wait<0>();\n",
        "",
        "test_long_contexts",
    ),
    ("the second walk adds to the first", WGMMA, "        rows.clear();\n", "", FAR),
    ("a row without keys is 0 / 0", WGMMA, "rows.last_key(r) < 0 ? 0 :", "false ? 0 :", MORE_NEW),
]
OTHER_FAULTS = [
    ("rows are divided by a little less", LAUNCH, "65536 // self._group + 1", "65536 // self._group", BY_PAGED, GROUPS),
    ("slots are divided by a little more", LAUNCH, "-(-(2**32) // tokens_a_block)", "2**25", BY_PAGED, GROUPS),
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
    *(fault(name, file, old, new, BY_PAGED, killed) for name, file, old, new, killed in PREFILL_FAULTS + WGMMA_FAULTS),
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
