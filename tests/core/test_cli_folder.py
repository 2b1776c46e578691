"""What a release folder may hold, and what release.yaml may say: everything else is refused in words, before anything is sent."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluicegate.cli import exits
from sluicegate.cli.errors import exit_code_of
from sluicegate.client.checks import judge
from sluicegate.client.documents import read_yaml
from sluicegate.client.errors import Mistake
from sluicegate.client.folder import hash_files, read_document, read_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "r1"
    (made / "artifact" / "deep").mkdir(parents=True)
    (made / "release.yaml").write_text("model: sentiment\n")
    (made / "artifact" / "model.onnx").write_bytes(b"graph")
    (made / "artifact" / "deep" / "data.json").write_bytes(b"{}")
    return made


def refused(run: Callable[[], Any]) -> str:
    """What was said: the sentence, and the next step."""
    with pytest.raises(Mistake) as caught:
        run()
    assert exit_code_of(caught.value) == exits.REFUSED and caught.value.next_step
    return "\n".join(caught.value.lines())


@pytest.mark.parametrize("place", ["artifact/deep", "artifact", "."])
def test_a_folder_that_cannot_be_read_is_named_and_not_left_out(
    folder: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.scandir, os.listdir

    def denied(which: int) -> Callable[[Any], Any]:
        def look(path: Any) -> Any:
            if Path(path) == folder / place:
                raise PermissionError(13, "Permission denied", str(path))
            return real[which](path)

        return look

    monkeypatch.setattr(os, "scandir", denied(0))
    monkeypatch.setattr(os, "listdir", denied(1))
    said = refused(lambda: read_folder(folder))
    assert f"{folder / place} cannot be read: Permission denied." in said and "chmod" in said


def test_a_file_that_cannot_be_read_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.open

    def denied(self: Path, *arguments: Any, **named: Any) -> Any:
        if self.name == "data.json":
            raise PermissionError(13, "Permission denied", str(self))
        return real(self, *arguments, **named)

    monkeypatch.setattr(Path, "open", denied)
    found = read_folder(folder)
    for run in (lambda: judge(None, found), lambda: hash_files(found.files, lambda *_: None)):
        assert "artifact/deep/data.json cannot be read: Permission denied." in refused(run)


@pytest.mark.parametrize("place", ["config.pbtxt", "artifact/config.pbtxt", "artifact/deep/x"])
@pytest.mark.parametrize("kind", ["pipe", "socket", "folder"])
def test_what_is_no_ordinary_file_is_refused_and_not_waited_for(
    folder: Path, place: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)  # a socket's address is short
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(place)
    elif place == "config.pbtxt":
        os.mkdir(place)
    else:
        return
    [mistake] = read_folder(folder).problems
    says = "it is a folder" if kind == "folder" else "it is neither a file nor a folder"
    assert mistake.file == place and says in mistake.problem.message and mistake.problem.fix


@pytest.mark.parametrize("name", [b"artifact/caf\xe9.json", b"artifact/deep/\xff/x.json"])
def test_a_name_that_is_not_utf_8_is_refused_in_printable_words(folder: Path, name: bytes) -> None:
    path = os.path.join(os.fsencode(folder), name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(b"{}")
    [mistake] = read_folder(folder).problems
    assert "is not UTF-8" in mistake.problem.message and "\\x" in mistake.file and mistake.file.encode()


def test_a_tokenizer_that_is_a_file_is_not_left_behind(folder: Path) -> None:
    (folder / "tokenizer").write_text("{}")
    [mistake] = read_folder(folder).problems
    assert (mistake.file, mistake.problem.message) == ("tokenizer", "it is a file, and must be a folder.")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (".nan", "not a number that JSON has"),
        ("[1.0, -.inf]", "not a number that JSON has"),
        ("!!binary aGVsbG8=", "nothing like !!binary"),
        ("!!set {a, b}", "nothing like !!set"),
        ("!!python/object:os.system {}", "nothing like !!python/object:os.system"),
        ("!!int twelve", "'twelve' is not a value of its kind"),
        ("!!bool maybe", "'maybe' is not a value of its kind"),
        ("1" * 5000, "longer than 64 bits"),
        ("0x" + "f" * 5000, "longer than 64 bits"),
        ("[" * 3000 + "]" * 3000, "nested deeper than 100"),
        ("{" + "a: {" * 3000 + "}" * 3001, "nested deeper than 100"),
        ("{12: x}", "the field's name '12' is not text"),
        ("{2026-01-01: x}", "the field's name '2026-01-01' is not text"),
        ("{[a, b]: x}", "is not text"),
        ('"\\ud800"', "invalid Unicode character escape code"),
    ],
)
def test_what_json_does_not_have_is_refused_with_its_line_and_its_fix(folder: Path, value: str, says: str) -> None:
    (folder / "release.yaml").write_text(f"model: sentiment\nprovenance:\n  notes: {value}\n")
    said = refused(lambda: read_document(folder))
    assert "release.yaml, line 3, column " in said and says in said and len(said) < 600


@pytest.mark.parametrize("text", ["&a [*a]", "&a {b: *a}", "[&a [x, x, x, x, x, x, x, x, x, x]"])
def test_anchors_that_never_end_are_refused(folder: Path, text: str) -> None:
    if text.startswith("[&a"):
        more = (f"&{name} [{', '.join([f'*{before}'] * 10)}]" for before, name in zip("abcdef", "bcdefg", strict=True))
        text = ", ".join([text, *more]) + "]"
    (folder / "release.yaml").write_text(f"model: sentiment\nprovenance: {text}\n")
    assert "anchors" in refused(lambda: read_document(folder))


def test_a_date_is_the_text_that_was_written(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(
        "day: 2026-12-20\nat: 2026-12-20 10:30:00\nodd: 2026-13-45\nquoted: '2026-12-20'\nn: 0o17\nempty:\n"
    )
    assert read_yaml(file) == {
        "day": "2026-12-20", "at": "2026-12-20 10:30:00", "odd": "2026-13-45", "quoted": "2026-12-20", "n": "0o17",
        "empty": None,
    }  # fmt: skip
