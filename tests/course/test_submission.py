"""What students hand in: folders, zips, Moodle's zip, and what must not get in with them."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tiny_vllm.errors import UserError
from tiny_vllm.grading.submission import MAX_FILE, loose, submissions

FILE = "ch42_sums/sums.cu"


def zipped(members: Mapping[str, str | bytes]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return data.getvalue()


def put(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def read(path: Path) -> dict[str, str]:
    """student -> the file's text, or what is wrong."""
    return {each.student: each.files.get(FILE, each.problem) for each in submissions(path, [FILE])}


def test_folders_and_zips_are_named_for_the_student(tmp_path):
    put(tmp_path / "in", {f"ada/{FILE}": "a", f"bob/work/{FILE}": "b", "notes.txt": "of the lecturer"})
    put(tmp_path / "in", {"eve.zip": zipped({f"my answers/work/{FILE}": "e", f"__MACOSX/{FILE}": "x"})})
    put(tmp_path / "in", {"empty.zip": zipped({})})
    (tmp_path / "in" / "nobody").mkdir()
    assert read(tmp_path / "in") == {"ada": "a", "bob": "b", "eve": "e", "empty": "", "nobody": ""}


def test_moodles_zip_of_all(tmp_path):
    inner = zipped({f"work/{FILE}": "a", "work/.course.json": "{}"})
    members: dict[str, str | bytes] = {
        "Ada Lovelace_12_assignsubmission_file_/work.zip": inner,
        f"Eve Adams_13_assignsubmission_file_/{FILE}": "e",
        "Bo Li_14_assignsubmission_file_work.zip": inner,
        "Eve Adams_15_assignsubmission_file_/": b"",
    }
    put(tmp_path / "in", {"all.zip": zipped(members)})
    expected = {"Ada Lovelace": "a", "Bo Li": "a", "Eve Adams (13)": "e", "Eve Adams (15)": ""}
    assert read(tmp_path / "in" / "all.zip") == read(tmp_path / "in") == expected


def test_one_students_work_folder(tmp_path):
    assert read(put(tmp_path / "ada", {FILE: "a"})) == {"ada": "a"}
    put(tmp_path, {"bob.zip": zipped({FILE: "b"})})
    assert read(tmp_path / "bob.zip") == {"bob": "b"}


def test_the_shallowest_file_counts(tmp_path):
    assert read(put(tmp_path / "in", {f"ada/old/{FILE}": "old", f"ada/{FILE}": "new"})) == {"ada": "new"}


@pytest.mark.parametrize(
    "content, text",
    [
        (b"one\r\ntwo\rthree", "one\ntwo\nthree"),
        (b"\xef\xbb\xbfmarked", "marked"),
        ("zwölf".encode("latin-1"), "ch42_sums/sums.cu: is not UTF-8 text"),
        (b"a\0b", "ch42_sums/sums.cu: holds a zero byte"),
        (b"x" * (MAX_FILE + 1), "ch42_sums/sums.cu: is larger than 256 KiB"),
    ],
)
def test_texts(tmp_path, content, text):
    assert read(put(tmp_path / "in", {f"ada/{FILE}": content})) == {"ada": text}
    put(tmp_path / "zips", {"ada.zip": zipped({FILE: content})})
    assert read(tmp_path / "zips") == {"ada": text}


@pytest.mark.parametrize("path", [f"../{FILE}", f"/etc/{FILE}", "C:/x/sums.cu", f"..\\..\\{FILE}"])
def test_a_path_that_leads_out_of_the_zip(tmp_path, path):
    put(tmp_path / "in", {"ada.zip": zipped({FILE: "a", path: "x"}), f"bob/{FILE}": "b"})
    found = read(tmp_path / "in")
    assert "ada.zip is refused: the path " in found["ada"] and "leads out of it" in found["ada"]
    assert found["bob"] == "b" and sorted(p.name for p in tmp_path.iterdir()) == ["in"]


def test_zips_that_cannot_be_read(tmp_path):
    put(tmp_path / "in", {"ada.zip": b"PK\3\4 no zip", "bob.zip": zipped({"a.zip": zipped({"b.zip": zipped({})})})})
    broken = bytearray(zipped({FILE: "text " * 1000}))
    broken[60:70] = b"0123456789"
    put(tmp_path / "in", {"eve.zip": bytes(broken)})
    found = read(tmp_path / "in")
    assert "ada.zip is no zip" in found["ada"] and "holds another zip, b.zip" in found["bob"]
    assert found["eve"].startswith(FILE)


def test_a_zip_bomb_is_not_unpacked(tmp_path):
    put(tmp_path / "in", {"ada.zip": zipped({FILE: b"\n" * (64 << 20), "other.txt": b"\n" * (64 << 20)})})
    assert (tmp_path / "in" / "ada.zip").stat().st_size < 1 << 20
    assert read(tmp_path / "in") == {"ada": "ch42_sums/sums.cu: is larger than 256 KiB"}


def test_links_are_not_followed(tmp_path):
    secret = put(tmp_path / "secret", {FILE: "the answer"})
    put(tmp_path / "in", {"ada/hello.txt": "x"})
    (tmp_path / "in" / "ada" / "ch42_sums").symlink_to(secret / "ch42_sums")
    (tmp_path / "in" / "eve").symlink_to(secret)
    found = read(tmp_path / "in")
    assert found.keys() == {"ada", "eve"} and "the answer" not in found.values()
    assert found["eve"].startswith("eve is a link, which is not followed")
    assert found["ada"].startswith("ch42_sums is a link")


@pytest.mark.parametrize("name", ["ada.tar.gz", "ada.rar", "ada.7z", "ada/work.TGZ"])
def test_another_packed_file_than_a_zip_is_named(tmp_path, name):
    put(tmp_path / "in", {name: b"x", f"bob/{FILE}": "b"})
    found = read(tmp_path / "in")
    assert found["ada"].startswith(f"{name.rpartition('/')[2]} is packed in another way") and found["bob"] == "b"
    put(tmp_path, {"all.zip": zipped({"Ada_1_assignsubmission_file_work.rar": b"x"})})
    assert "packed in another way" in read(tmp_path / "all.zip")["Ada"]


def test_what_lies_beside_the_submissions_is_told(tmp_path):
    put(tmp_path / "in", {f"ada/{FILE}": "a", "bob.cu": "b", "Thumbs.db": b"", "eve.zip": zipped({}), "x.rar": b""})
    assert loose(tmp_path / "in") == ["bob.cu"] and "bob.cu" not in read(tmp_path / "in")
    assert loose(tmp_path / "in" / "ada") == loose(tmp_path / "in" / "eve.zip") == []


def test_nothing_there(tmp_path):
    with pytest.raises(UserError, match="holds no submission"):
        submissions(tmp_path, [FILE])
    with pytest.raises(UserError, match="does not exist"):
        submissions(tmp_path / "away", [FILE])
