"""The committed notebooks are what their pages build, and hold what they may. Nothing is executed here."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("jupytext", reason="the notebooks extra is not installed")
pytest.importorskip("nbclient", reason="the notebooks extra is not installed")

import nbformat

from tiny_vllm.course.chapter import chapters
from tiny_vllm.course.skeletons import notebook_of
from tools import build_notebooks as builder
from tools.first_cells import COLAB, MASTER_COPY
from tools.lesson_page import exercise_of, is_compared, is_figure, printed, printed_text, tags

CHAPTERS = [each for each in chapters() if (each.folder / "README.md").is_file()]
every_chapter = pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.name)


def committed(chapter):
    return nbformat.read(builder.NOTEBOOKS / builder.name_of(chapter), as_version=4)


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch):
    def refuse(*arguments, **settings):
        raise AssertionError("a kernel was started")

    monkeypatch.setattr("tools.notebook_runs.NotebookClient", refuse)


@every_chapter
def test_a_notebook_is_what_its_page_builds(chapter):
    assert builder.stale(chapter) is None, "run `make notebooks`"


@every_chapter
def test_what_stands_first(chapter):
    notice, colab, *rest = committed(chapter).cells
    assert tags(notice) == [MASTER_COPY] and f"tiny-vllm course start {chapter.number}" in notice.source
    assert tags(colab) == [COLAB] and '"google.colab" in sys.modules' in colab.source and "cuda" not in colab.source
    assert rest[0].source.startswith(f"# {chapter.number} · ")


@every_chapter
def test_only_compared_cells_keep_an_output(chapter):
    for cell in committed(chapter).cells:
        if cell.cell_type != "code":
            continue
        assert bool(cell.outputs) == is_compared(cell) == (cell.execution_count is not None), cell.source
        kinds = [each.output_type for each in cell.outputs]
        assert kinds == (["display_data"] if is_figure(cell) else []) + ["stream"] * is_compared(cell), cell.source


@every_chapter
def test_a_picture_has_words(chapter):
    for cell in filter(is_figure, committed(chapter).cells):
        picture = cell.outputs[0]
        assert picture.data["text/plain"] == picture.metadata["image/png"]["alt"]
        assert len(picture.data["text/plain"].split()) >= 5


@every_chapter
def test_outputs_name_no_device_and_no_machine(chapter):
    told = "\n".join(printed_text(cell) for cell in committed(chapter).cells if cell.cell_type == "code")
    assert not any(word in told for word in ("NVIDIA", "emulator (", "/tmp", " ms", "tokens/s"))


@every_chapter
def test_the_solved_set_fills_and_compares_every_exercise(chapter):
    solved, asked = builder.build(chapter, solved=True), {}
    for cell in filter(exercise_of, solved.cells):
        asked[exercise_of(cell)] = cell
        assert printed_text(cell) == f"{exercise_of(cell)}: passed\n" and is_compared(cell)
    assert set(asked) == {each.id for each in chapter.exercises}
    assert "..." not in "".join(cell.source for cell in asked.values())
    assert [cell.id for cell in solved.cells] == [cell.id for cell in committed(chapter).cells]


@every_chapter
def test_no_answer_is_in_the_committed_notebook(chapter):
    assert builder.answers_in(builder.NOTEBOOKS, chapter) == []


@every_chapter
def test_an_answer_would_be_found(chapter, tmp_path):
    builder.write(builder.build(chapter, solved=True), tmp_path / "solved.ipynb")
    assert builder.answers_in(tmp_path, chapter) != []


@every_chapter
def test_a_students_copy_has_no_notice(chapter):
    found = notebook_of(chapter)
    assert found is not None
    name, text = found
    own = json.loads(text)["cells"]
    assert name == builder.name_of(chapter) and len(own) == len(committed(chapter).cells) - 1
    assert not any("master copy" in "".join(cell["source"]) for cell in own)


def test_what_a_rebuild_notices(tmp_path, monkeypatch):
    chapter = CHAPTERS[0]
    monkeypatch.setattr(builder, "NOTEBOOKS", tmp_path)
    path = tmp_path / builder.name_of(chapter)
    assert builder.stale(chapter) == f"notebooks/{path.name} is missing"
    fresh = builder.build(chapter)
    builder.write(fresh, path)
    figure = next(filter(is_figure, fresh.cells), None)
    assert figure is None or "has no picture" in str(builder.stale(chapter))

    def changed(change):
        notebook = builder.build(chapter)
        change(notebook)
        builder.write(notebook, path)
        return builder.stale(chapter) == f"notebooks/{path.name} is not what its page builds"

    compared = next(n for n, cell in enumerate(fresh.cells) if is_compared(cell))
    assert changed(lambda notebook: notebook.cells[2].update(source="# another text"))
    assert changed(lambda notebook: notebook.cells[compared].update(outputs=[printed("another\n")]))
    assert changed(lambda notebook: notebook.cells[compared].metadata.update(tags=[]))
    assert changed(lambda notebook: notebook.cells[3].update(id="another"))
    assert changed(lambda notebook: notebook.metadata.update(author="somebody"))
    assert changed(lambda notebook: notebook.cells.pop())


def test_what_a_run_may_not_do():
    chapter = CHAPTERS[0]
    page, run = builder.build(chapter), builder.build(chapter)
    assert builder.differences(page, run) == []
    number = next(n for n, cell in enumerate(run.cells) if is_compared(cell))
    run.cells[number].outputs = [printed("another\n"), nbformat.v4.new_output("stream", name="stderr", text="careful")]
    diff, warned = builder.differences(page, run)
    assert "+another" in diff and f"cell {number}" in diff
    assert "writes to stderr: careful" in warned
