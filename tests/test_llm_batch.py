"""LLM with many prompts at once: order, settings, mistakes, streams beside batches, errors in the middle."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.conftest import DATA
from tests.engine.engine_load import near_ties
from tests.engine.test_llm_engine import tokens
from tiny_vllm import LLM, SamplingParams
from tiny_vllm.errors import UserError

TINY = DATA / "tiny" / "tiny"
GREEDY = SamplingParams(0.0, 12, ignore_eos=True)


@pytest.fixture(scope="module")
def where(request) -> str:
    return request.config.getoption("--device")


@pytest.fixture
def llm(where) -> Iterator[LLM]:
    with LLM(TINY, dtype="float32", device=where, max_num_seqs=5, max_model_len=200) as made:
        yield made


def prompts(count: int) -> list[dict[str, list[int]]]:
    return [{"prompt_token_ids": tokens(seed, 1 + 7 * seed % 90)} for seed in range(count)]


def assert_right(items: list[dict[str, list[int]]], outputs: list[Any]) -> None:
    assert [output.prompt_token_ids for output in outputs] == [item["prompt_token_ids"] for item in items]
    for output in outputs:
        assert near_ties("tiny", output.prompt_token_ids, output.outputs[0].token_ids) == 0


def test_answers_come_in_the_order_of_the_prompts(llm):
    """More prompts than run at once, ends in any order."""
    items = prompts(13)
    params = [SamplingParams(0.0, 1 + 5 * index % 17, ignore_eos=True) for index in range(13)]
    outputs = llm.generate(items, params)
    assert_right(items, outputs)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [each.max_tokens for each in params]
    stats = llm.stats()
    assert stats.num_generated_tokens == sum(each.max_tokens for each in params)
    assert stats.num_steps < stats.num_generated_tokens and stats.tokens_per_second > 0
    assert (stats.num_running, stats.num_waiting, stats.num_used_blocks) == (0, 0, 0)


def test_nothing_runs_if_one_prompt_is_wrong(llm):
    with pytest.raises(UserError, match="token id 9999 is not in the vocabulary"):
        llm.generate([*prompts(3), {"prompt_token_ids": [9999]}], GREEDY)
    assert llm.stats().num_steps == 0


def test_a_batch_while_streams_are_open(llm):
    """What a batch's steps bring for a stream waits for it."""
    first, second, *others = prompts(6)
    one, two = llm.stream(first, GREEDY), llm.stream(second, GREEDY)
    early = [next(one), next(two)]
    outputs = llm.generate(others, GREEDY)
    assert_right(others, outputs)
    rest = [[early[0], *one], [early[1], *two]]
    assert [len(output.outputs[0].token_ids) for output in rest[0]] == list(range(1, 13))
    assert_right([first, second], [rest[0][-1], rest[1][-1]])


def test_a_stream_that_is_dropped_gives_its_blocks_back(llm):
    stream = llm.stream(prompts(3)[2], GREEDY)
    next(stream)
    assert llm.stats().num_running == 1
    stream.close()
    assert (llm.stats().num_running, llm.stats().num_used_blocks) == (0, 0)
    assert_right(prompts(4), llm.generate(prompts(4), GREEDY))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError("full")], ids=repr)
def test_an_error_in_the_middle(llm, monkeypatch, error):
    """Ctrl-C in mid-step: nothing stays behind, an open stream says what happened, and the next call works."""
    stream = llm.stream(prompts(1)[0], GREEDY)
    next(stream)
    model = llm._engine.check_open().runner.model
    steps = iter(range(3))
    forward = model.forward

    def interrupted(*args: Any) -> Any:
        if next(steps, None) is None:
            raise error
        return forward(*args)

    monkeypatch.setattr(model, "forward", interrupted)
    with pytest.raises(type(error)):
        llm.generate(prompts(6), GREEDY)
    monkeypatch.setattr(model, "forward", forward)
    with pytest.raises(UserError, match="an error in another request's step has ended this answer too"):
        list(stream)
    assert llm.stats().num_used_blocks == 0
    assert_right(prompts(6), llm.generate(prompts(6), GREEDY))


def test_a_bar_on_a_terminal_only(llm, capsys, monkeypatch):
    llm.generate(prompts(3), GREEDY)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    llm.generate(prompts(3), GREEDY)
    assert "3/3" in capsys.readouterr().err
    llm.generate(prompts(1), GREEDY)
    llm.generate(prompts(3), GREEDY, use_tqdm=False)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs is 0; give a whole number of at least 1"),
        ({"max_num_batched_tokens": 2.0}, "max_num_batched_tokens is 2.0; give a whole number"),
        ({"block_size": None}, "block_size is None; give a whole number of at least 1"),
        ({"num_gpu_blocks_override": -1}, "num_gpu_blocks_override is -1"),
        ({"gpu_memory_utilization": 0}, "gpu_memory_utilization is 0; give a number above 0"),
        ({"enable_prefix_caching": 1}, "enable_prefix_caching is 1; give True or False"),
        ({"enforce_eager": "no"}, "enforce_eager is 'no'; give True, False or None"),
        ({"async_scheduling": 0}, "async_scheduling is 0; give True, False or None"),
        ({"scheduler": 3}, "scheduler is 3; give a class or a function that makes one"),
        ({"block_pool": "big"}, "block_pool is 'big'; give a class"),
        (
            {"block_pool": lambda *_: None},
            "block_pool made None, which lacks block_size, num_free, allocate, free; the",
        ),
        (
            {"scheduler": lambda *_, **__: 3},
            "scheduler made 3, which lacks add, abort, schedule, update; the protocols",
        ),
        ({"sampler": max}, r"sampler is .*max.*; give an object with sample\(logits, requests\)"),
        ({"num_gpu_blocks_override": 10**12}, "num_gpu_blocks_override is 1000000000000: they take"),
        ({"max_num_seqs": 10**30}, r"max_num_seqs is 10+: their logits .* the largest that fits is \d+"),
    ],
)
def test_mistakes_in_the_settings(settings, message, where):
    with pytest.raises(UserError, match=message):
        LLM(TINY, **{"device": where, "dtype": "float32", **settings})


@pytest.mark.parametrize("settings", [{"async_scheduling": True}, {"enforce_eager": False}, {"block_size": 8}])
def test_settings_do_not_change_the_answers(where, settings):
    items = prompts(6)
    with LLM(TINY, dtype="float32", device=where, max_model_len=200, **settings) as llm:
        assert_right(items, llm.generate(items, GREEDY))
        assert llm.async_scheduling == settings.get("async_scheduling", where == "cuda")
        if "enforce_eager" in settings:
            assert llm.stats().num_graphs


def test_prefix_caching_can_be_turned_off(where):
    same = [{"prompt_token_ids": tokens(1, 50)}] * 2
    for caching in (True, False):
        with LLM(TINY, dtype="float32", device=where, enable_prefix_caching=caching, max_model_len=200) as llm:
            for item in same:
                llm.generate(item, GREEDY)
            assert (llm.stats().prefix_hit_rate > 0) == caching


@pytest.mark.deep
def test_sixteen_chats_with_a_real_model(where):
    """SmolLM2-135M: each answer equal to its lone run, up to a place where the two best tokens are as good as equal."""
    goldens = json.loads((DATA / "smollm2_135m_instruct.json").read_text())["prompts"]
    questions = ["What is the capital of Japan?", "Name three colours.", "Tell me a joke.", "2 + 2 =", "Who was Plato?"]
    with LLM("smollm2-135m", dtype="float32", device=where, max_model_len=512) as llm:
        chats = [
            llm.chat_prompt([{"role": "user", "content": f"{question} ({index})"}])
            for index, question in enumerate(questions[i % 5] for i in range(16 - len(goldens)))
        ]
        items = [*chats, *({"prompt_token_ids": golden["ids"]} for golden in goldens)]
        params = SamplingParams(0.0, 24, ignore_eos=True, logprobs=2)
        together = llm.generate(items, params)
        alone = [llm.generate(item, params)[0] for item in items]
    ties = sum(first_difference_is_a_tie(*pair) for pair in zip(together, alone, strict=True))
    print(f"{len(items)} chats, {ties} of them part at a tie")
    for output, golden in zip(together[len(chats) :], goldens, strict=True):
        assert output.outputs[0].token_ids == golden["fp32"]["tokens"][:24]


def first_difference_is_a_tie(one: Any, two: Any) -> bool:
    for index, pair in enumerate(zip(one.outputs[0].token_ids, two.outputs[0].token_ids, strict=True)):
        if pair[0] != pair[1]:
            best, second = (item.logprob for item in list(two.outputs[0].logprobs[index].values())[:2])
            assert best - second < 1e-3, f"token {index} of the answer is another one in company"
            return True
    return False


def test_settings_may_be_numpys(where):
    settings: dict[str, Any] = {
        "max_model_len": np.int64(64),
        "max_num_seqs": np.int32(2),
        "gpu_memory_utilization": np.float32(0.5),
    }
    with LLM(TINY, dtype="float32", device=where, **settings) as llm:
        assert_right(prompts(3), llm.generate(prompts(3), GREEDY))


@pytest.mark.parametrize("settings", [{}, {"num_gpu_blocks_override": 10}, {"max_num_seqs": 1}])
def test_a_checkpoint_of_a_length_that_no_memory_holds(where, settings, tmp_path):
    """The error comes before the tables for such a length are made."""
    folder = shutil.copytree(TINY, tmp_path / "long")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 2 * 10**9}))
    with pytest.raises(UserError, match=r"max_model_len is 2000000000: .* \d+ fits$") as caught:
        LLM(folder, device=where, **settings)
    assert int(str(caught.value).split()[-2]) > 10000


def test_threads_share_an_llm(llm):
    """Streams and batches of four threads, all of them right; sys.setswitchinterval makes them change often."""
    failed: list[BaseException] = []

    def work(seed: int) -> None:
        items = prompts(20)[seed::4]
        try:
            assert_right(items, llm.generate(items, GREEDY))
            assert_right(items, [list(llm.stream(item, GREEDY))[-1] for item in items])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(interval)
    assert not failed and not any(thread.is_alive() for thread in threads)
    assert llm.stats().num_used_blocks == 0
