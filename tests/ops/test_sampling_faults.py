"""Faults of the sampling kernels, planted one by one: the named test must notice (`-m deep`)."""

from __future__ import annotations

import pytest

from tests.engine.planting import Fault, check_found, check_unplanted

ORDER, SEARCH, FILTER, DRAW = "token_order.cuh", "sampling_search.cuh", "sampling_filter.cu", "sampling_draw.cu"
RANDOM, ADJUST, LOGPROBS = "philox.cuh", "sampling_adjust.cu", "sampling_logprobs.cu"
BY_ARGMAX, BY_SAMPLING, BY_SAMPLER = "ops/test_argmax.py", "ops/test_sampling.py", "engine/test_sampler.py"
GRID, NUMPY, WORDS = "test_the_grid_does_not_change_a_draw", "test_filters_keep_what_numpy_keeps", "test_philox_gives"
TIES, CROWD = "test_filters_of_rows_with_ties_and_masks", "test_filters_of_a_bin_that_just_fits_and_just_not"
ADJUSTED, NEWEST = "test_adjusted_logits_are_those_of_numpy", "test_the_newest_token_and_those_in_flight_count"
SECOND = "test_the_second_choice_of_a_thread_may_win"
SOFTMAX, NOISE = "test_logprobs_are_the_log_softmax", "test_noise_is_gumbel_to_its_ends"

ARGMAX_FAULTS = [
    ("of four neighbours the last wins", ORDER, "j = 0;\n    while (j < 3", "j = 1;\n    while (j < 3", "test_argmax"),
    (
        "a row of nothing but -inf has no token",
        ORDER,
        "(best_four < 0 && largest == largest)",
        "false",
        "test_nan_and_infinity",
    ),
    ("the end of a row is one token late", ORDER, "four + j < end ?", "four + j <= end ?", "test_argmax"),
]
SAMPLING_FAULTS = [
    ("zeros of two signs differ", ORDER, "__float_as_uint(logit + 0.0f)", "__float_as_uint(logit)", TIES),
    ("negative logits are upside down", ORDER, "? ~bits : bits |", "? bits : bits |", NUMPY),
    ("NaN comes first", ORDER, "if (logit != logit) return 0;", "", "test_logprobs_of_masked_tokens"),
    ("the first block writes", ORDER, "(num_arrived, 1) < gridDim.x - 1)", "(num_arrived, 1) > 0)", GRID),
    ("the winner stays for the next draw", ORDER, "largest = atomicExch(best, 0ull)", "largest = *best", GRID),
    (
        "a carry of a sum is lost",
        SEARCH,
        "(unsigned)(amount >> 32) + carry",
        "(unsigned)(amount >> 32)",
        f"{NUMPY} and top_p",
    ),
    ("what lies above a bin counts twice", SEARCH, "        wanted -= work.before;\n", "", NUMPY),
    ("min_p leaves out the likeliest", FILTER, "mass(logit) >= (u64)", "mass(logit) > (u64)", f"{NUMPY} and min_p"),
    ("the list counts as whole", FILTER, "filter.top_k <= MOST_PROBED)", "true)", NUMPY),
    (
        "the list's share counts as the row's",
        FILTER,
        "if (total(list, work, mass) < share) return false;",
        "",
        f"{NUMPY} and top_p",
    ),
    ("too little is listed", FILTER, "probed = min(filter.top_k, (u64)MOST_PROBED)", "probed = 1", NUMPY),
    (
        "a flat row's top_p is of the whole row",
        FILTER,
        "row.each([&](u64 key) { sum += key >= last",
        "row.each([&](u64 key) { sum += true",
        f"{NUMPY} and all",
    ),
    ("a bin begins at the top", FILTER, "wanted - before, work", "wanted, work", NUMPY),
    ("a full bin is listed", FILTER, "work.bins[bin].count > MAX_LISTED", "false", CROWD),
    ("the noise is taken for less than it may be", DRAW, "32.0f - __log2f", "28.0f - __log2f", SECOND),
    ("a thread has no second token", DRAW, "other = fmaxf(other, bound);", "", SECOND),
    ("a token that was overtaken is forgotten", DRAW, "            other = best;\n", "", SECOND),
    ("the temperature is forgotten", DRAW, "logit / temperature + gumbel", "logit + gumbel", GRID),
    ("the history lacks the token", DRAW, "row.slot >= 0 && row.num_tokens < max", "row.num_tokens < 0 * max", NEWEST),
    ("nine rounds", RANDOM, "round < 10", "round < 9", WORDS),
    ("all tokens of an answer have the same noise", RANDOM, "(unsigned)index, 0, 0}", "0, 0, 0}", GRID),
    ("noise may be infinite", RANDOM, "((float)word + 0.5f)", "((float)word)", NOISE),
    ("a negative logit is divided too", ADJUST, ": logit * row.repetition", ": logit / row.repetition", ADJUSTED),
    ("a token counts once", ADJUST, "frequency_penalty * in_answer", "frequency_penalty * (in_answer > 0)", ADJUSTED),
    ("a bias takes the logit's place", ADJUST, "+ i]] += bias", "+ i]] = bias", ADJUSTED),
    ("the newest token is left out", ADJUST, "if (i == row.num_known - 1)", "if (false)", NEWEST),
    ("a rank counts the token itself", LOGPROBS, "id) > chosen_key", "id) >= chosen_key", SOFTMAX),
]
SAMPLER_FAULTS = [
    (
        "the last of equal tokens is left out",
        DRAW,
        "+ j <= last_id",
        "+ j < last_id",
        "test_of_equal_tokens_the_lowest_ids_stay",
    ),
]
FAULTS = [
    Fault(name, f"../kernels/{kernel}", old, new, file, killed_by)
    for file, faults in ((BY_ARGMAX, ARGMAX_FAULTS), (BY_SAMPLING, SAMPLING_FAULTS), (BY_SAMPLER, SAMPLER_FAULTS))
    for name, kernel, old, new, killed_by in faults
]


@pytest.mark.deep
def test_a_copy_without_a_fault_passes(tmp_path, request):
    """The quickest file stands for the others, which the suite itself runs."""
    check_unplanted(tmp_path, FAULTS, BY_ARGMAX, request.config.getoption("--device"))


@pytest.mark.deep
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found(fault, tmp_path, request):
    check_found(tmp_path, fault, request.config.getoption("--device"))
