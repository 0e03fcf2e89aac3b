"""Faults of lengths, text, sampling and kernels, planted one by one: the named test must notice (`-m deep`)."""

from __future__ import annotations

import pytest

from tests.engine.planting import Fault, check_found, check_unplanted

CONFIG, SAMPLER, STOP = "models/config.py", "engine/sampling_rows.py", "engine/stop.py"
ROPE, FILTER, ADJUST = "../kernels/rope.cu", "../kernels/sampling_filter.cu", "../kernels/sampling_adjust.cu"
ATTENTION = "../kernels/attention.cu"
BY_SAMPLER, BY_CONFIG, BY_TOKENIZER = "engine/test_sampler.py", "models/test_config.py", "models/test_tokenizer.py"
BY_ROPE, BY_ATTENTION, BY_SAMPLING = "ops/test_rope.py", "ops/test_attention.py", "ops/test_sampling.py"

HALVES = "j++) turn(x.x[j], y.x[j], angles[i + j], angles[i + j + half]);"
ADJACENT = """j += 2) {
            const int at = (i + j) / 2;
            turn(x.x[j], x.x[j + 1], angles[at], angles[at + half]);
            turn(y.x[j], y.x[j + 1], angles[at + half / 2], angles[at + half / 2 + half]);
        }"""

LENGTHS = [
    Fault(
        "one token too many",
        "engine/limits.py",
        "+ request.params.max_tokens, self",
        "+ request.params.max_tokens + 1, self",
        "engine/test_answers.py",
        "test_max_tokens",
    ),
    Fault(
        "an empty prompt is taken in",
        "engine/inputs.py",
        'if not token_ids:\n                raise UserError("prompt_token_ids is empty',
        'if False:\n                raise UserError("prompt_token_ids is empty',
        "engine/test_inputs.py",
        "test_mistakes_in_a_prompt",
    ),
]
TEXT = [
    Fault(
        "the beginning of a stop string shows",
        STOP,
        "self._give(len(self._held) - self._num_held())",
        "self._give(len(self._held))",
        "engine/test_output_text.py",
        "test_a_stop_string_of_three_tokens_never_shows",
    ),
    Fault(
        "the stop string stays in the text",
        STOP,
        "start + len(self.found) if self._include else start",
        "start + len(self.found)",
        "engine/test_output_text.py",
        "test_a_stop_string_of_three_tokens_never_shows",
    ),
    Fault(
        "half a character shows",
        "engine/detokenizer.py",
        "if not piece or piece.endswith(UNFINISHED):",
        "if not piece:",
        "engine/test_detokenizer.py",
        "test_characters_of_several_tokens_come_whole",
    ),
    Fault(
        "a chat has two BOS",
        "models/tokenizer.py",
        "self.apply_chat_template(messages), add_special_tokens=False",
        "self.apply_chat_template(messages)",
        BY_TOKENIZER,
        "test_a_chat_has_one_bos",
    ),
    Fault(
        "only the first end-of-sequence token counts",
        CONFIG,
        "return tuple(ids)",
        "return tuple(ids[:1])",
        BY_CONFIG,
        "test_generation_config_has_the_first_say_on_eos",
    ),
    Fault(
        "generation_config.json comes last",
        CONFIG,
        "sources.insert(0, ",
        "sources.append(",
        BY_CONFIG,
        "test_generation_config_has_the_first_say_on_eos",
    ),
]
SAMPLING = [
    Fault(
        "the highest id wins a tie",
        "../kernels/token_order.cuh",
        "if (largest > best ||",
        "if (largest >= best ||",
        BY_SAMPLER,
        "test_temperature_0_and_top_k_1_take_the_lowest_id_of_a_tie",
    ),
    Fault(
        "top-p drops the token that crosses the threshold",
        FILTER,
        "last_ids[blockIdx.x] = key_id(last)",
        "last_ids[blockIdx.x] = key_id(last) - 1",
        BY_SAMPLER,
        "test_top_p_keeps_the_token_that_crosses_the_threshold",
    ),
    Fault(
        "top-p takes its share of the whole row",
        FILTER,
        "list.each([&](u64 key) { sum += key >= last ? mass",
        "list.each([&](u64 key) { sum += true ? mass",
        BY_SAMPLER,
        "test_top_p_takes_its_share_of_what_top_k_left",
    ),
    Fault(
        "a presence penalty counts the prompt",
        ADJUST,
        "return in_answer ? logit",
        "return count ? logit",
        BY_SAMPLING,
        "test_adjusted_logits_are_those_of_numpy",
    ),
    Fault(
        "a repetition penalty leaves out the prompt",
        ADJUST,
        "    logit = logit > 0 ?",
        "    if (in_answer) logit = logit > 0 ?",
        BY_SAMPLING,
        "test_adjusted_logits_are_those_of_numpy",
    ),
    Fault(
        "a draw depends on the row",
        SAMPLER,
        "[index_of(request) for request in self.requests]",
        "[index_of(request) + row for row, request in enumerate(self.requests)]",
        BY_SAMPLER,
        "test_a_batch_of_33_draws_what_each_draws_alone",
    ),
    Fault(
        "half of a seed counts",
        SAMPLER,
        "seeds >> np.uint64(32)",
        "seeds * np.uint64(0)",
        BY_SAMPLER,
        "test_the_seed_counts_all_its_bits",
    ),
    Fault(
        "a batch of the same size is taken for the last one",
        SAMPLER,
        " and all(map(operator.is_, requests, self.requests))",
        "",
        BY_SAMPLER,
        "test_a_batch_of_33_draws_what_each_draws_alone",
    ),
]
NUMERICS = [
    Fault("neighbours are turned, not halves", ROPE, HALVES, ADJACENT, BY_ROPE, "test_whole_arrays"),
    Fault("all rows are at the first one's position", ROPE, "positions[token]", "positions[0]", BY_ROPE, "test_whole"),
    Fault(
        "Llama 3's frequencies are not stretched",
        "models/rope.py",
        'return self._stretch(freq) if self.rope_type == "llama3" else freq',
        "return freq",
        BY_CONFIG,
        "test_inv_freq",
    ),
    Fault(
        "the schema of transformers 5 is not read",
        CONFIG,
        '[settings.section("rope_parameters"), settings.section("rope_scaling")]',
        '[settings.section("rope_scaling")]',
        BY_CONFIG,
        "test_both_schemas_say_the_same",
    ),
    Fault(
        "an unknown rope_type is taken for the default",
        CONFIG,
        "if rope_type not in ROPE_TYPES:",
        "if False:",
        BY_CONFIG,
        "test_refused_by_name",
    ),
    Fault(
        "every head is tied",
        "models/weights.py",
        "embed if config.tie_word_embeddings else loader.load(HEAD)",
        "embed",
        "models/test_weights.py",
        "test_every_tensor_of_the_tiny_checkpoints",
    ),
    Fault(
        "head_dim is always hidden_size / heads",
        CONFIG,
        "head_dim = head_dim or hidden // heads",
        "head_dim = hidden // heads",
        BY_CONFIG,
        "test_defaults_and_variants",
    ),
    Fault(
        "a kernel is made for heads of 64",
        ATTENTION,
        "for (int d = 0; d < HEAD_DIM; d += 4) {",
        "for (int d = 0; d < 64; d += 4) {",
        BY_ATTENTION,
        "test_head_dims",
    ),
    Fault(
        "a row without keys is 0 / 0",
        ATTENTION,
        "is_seen ? result / total : 0.0f",
        "result / total",
        BY_ATTENTION,
        "test_rows_that_nobody_owns_are_zeros",
    ),
    Fault(
        "offsets have 32 bits",
        "../kernels/write_kv.cu",
        "const size_t head = block",
        "const int head = block",
        "ops/test_paged_attention.py",
        "test_offsets_past_2_to_the_31",
    ),
    Fault(
        "a grid ends at 65,535",
        "ops/tuned.py",
        'self._launch("rope", (rows,),',
        'self._launch("rope", (min(rows, 65535),),',
        BY_ROPE,
        "test_70_000_tokens_of_one_prompt",
    ),
]
FAULTS = LENGTHS + TEXT + SAMPLING + NUMERICS


@pytest.mark.deep
@pytest.mark.parametrize("file", sorted({fault.file for fault in FAULTS}))
def test_a_copy_without_a_fault_passes(file, tmp_path, request):
    check_unplanted(tmp_path, FAULTS, file, request.config.getoption("--device"))


@pytest.mark.deep
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found(fault, tmp_path, request):
    check_found(tmp_path, fault, request.config.getoption("--device"))
