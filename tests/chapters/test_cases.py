"""Every chapter's cases on an implementation: `--impl solution` (the default), `--impl work`, or a folder's path.

The same tables as `tiny-vllm course check`; on a GPU (--device cuda) values only.
"""

from __future__ import annotations

import numpy as np
import pytest

from tiny_vllm.course.chapter import Chapter, chapters
from tiny_vllm.course.checking import check_exercise, load_cases
from tiny_vllm.course.failure import report
from tiny_vllm.course.files import implementation

CHAPTERS = [chapter for chapter in chapters() if (chapter.folder / "cases.py").is_file()]
TASKS = [(chapter, task) for chapter in CHAPTERS for task in load_cases(chapter).TASKS]
WRITTEN = [each for each in TASKS if each[0].exercise(each[1].exercise).kind != "fault"]
FAULTS = [each for each in TASKS if each not in WRITTEN]


def of_tasks(tasks):
    return pytest.mark.parametrize("chapter, task", tasks, ids=[task.exercise for _, task in tasks])


@of_tasks(WRITTEN)
def test_it_passes_its_cases(chapter: Chapter, task, request):
    folder, device = implementation(request.config.getoption("--impl")), request.config.getoption("--device")
    outcome = check_exercise(chapter, task.exercise, folder, device=device)
    if not outcome.passed:
        pytest.fail(report(outcome), pytrace=False)


@of_tasks(FAULTS)
def test_a_fault_shows_in_check_mode(chapter: Chapter, task):
    """What an answer must name comes from there."""
    outcome = check_exercise(chapter, task.exercise, chapter.folder.parent, whole=True)
    assert outcome.findings and not outcome.passed, report(outcome)


@of_tasks(TASKS)
def test_a_table_is_sound(chapter: Chapter, task):
    """Its exercise is in chapter.toml, its groups have weights, its draws repeat, its answers fit its outputs."""
    from chapters._cases import WEIGHTS

    exercise = chapter.exercise(task.exercise)
    assert set(task.twists) == set(exercise.twists)
    assert len(set(map(repr, task.cases))) == len(task.cases)
    groups = dict.fromkeys(case.group for case in task.cases)
    secret = [task.secret(np.random.default_rng(seed), group) for group in groups for seed in range(5)]
    assert [case.group for case in secret] == [group for group in groups for _ in range(5)]
    for case in (*task.cases, *secret):
        assert case.group in WEIGHTS
        inputs, again = (task.draw(np.random.default_rng(3), case) for _ in range(2))
        for name, value in inputs.items():
            assert isinstance(value, (np.ndarray, int, float)), f"{name} of {case} is a {type(value)}"
            np.testing.assert_array_equal(value, again[name])
        outputs = task.outputs(inputs)
        for reference in (task.expected, *task.twists.values()):
            answers = reference(inputs)
            assert {name: np.shape(a) for name, a in answers.items()} == {n: o.shape for n, o in outputs.items()}
            assert all(np.isfinite(np.asarray(answer, np.float64)).all() for answer in answers.values()), case


@of_tasks([each for each in WRITTEN if each[1].twists])
def test_a_twist_changes_the_answer_in_most_cases(chapter: Chapter, task):
    """So that the public answer gets little under it: in every group some case differs by more than is allowed."""
    for number, twisted in task.twists.items():
        differ = set()
        for case in task.cases:
            inputs = task.draw(np.random.default_rng(3), case)
            pairs = [(answer, twisted(inputs)[name]) for name, answer in task.expected(inputs).items()]
            if not all(np.allclose(public, other, task.rtol, task.atol) for public, other in pairs):
                differ.add(case.group)
        weights = {"basic": 40, "tails": 30, "numbers": 20, "limits": 10}
        groups = {case.group for case in task.cases}
        kept = sum(weights[group] for group in groups - differ) / sum(weights[group] for group in groups)
        assert kept <= 0.4, f"twist {number}: the public answer gets {kept:.0%}; only {sorted(differ)} differ"
