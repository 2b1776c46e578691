"""One release folder, four doors: `check`, `push`, REST and the upload page give the same list of mistakes, in the same order.

`check` and REST judge every folder of the table. The page and `push` judge one folder per form of what they send.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser

from accounts.actions import actor_for, issue_token
from registry.core.folder_rules import added_part, arrange
from registry.models import Release
from sluicegate.cli import exits
from sluicegate.cli.main import main
from tests.pages.upload_browser import Person, database_url
from tests.support.rigs.upload_rig import Installation
from tests.support.worlds.folder_members import MEMBERS
from tests.support.worlds.registry_samples import CONTRACT, person, served_model
from tests.support.worlds.release_folders import CASES, Case

pytestmark = [
    pytest.mark.real("chromium", "postgres", "valkey"),
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(900),
]
FIELDS = ("file", "line", "column", "field", "message", "fix")
#: What only the folder shows, and REST is not told.
OF_FOLDER = ("neither artifact/ nor tokenizer/", "it is a folder")

#: One folder per form in which a door can lose something: an odd document, the heads and sizes of files, names, kinds of members,
#: a second document, a contract and objectives that only the server knows, and the order of many mistakes.
THROUGH_EVERY_DOOR = {
    "nothing wrong", "what systems add is left out", "a vocabulary larger than the table", "empty", "syntax",
    "config.pbtxt beside a mistake of release.yaml", "config.pbtxt cannot be read", "no file at all", "names that differ in case",
    "a misspelt folder", "a folder in the place of a file", "a pickle under another name", "a safetensors file cut off",
    "weights beside the graph are missing", "weights beside the graph under any name", "a warm-up text with NUL",
    "too little memory and disk", "a plan that is none", "the contract is broken", "slower than the model allows",
    "mistakes of all families at once",
}  # fmt: skip


@pytest.fixture
def installation(django_db_setup: None, tmp_path: Path) -> Iterator[Installation]:
    made = Installation(tmp_path, {"DATABASE_URL": database_url(), "SLUICEGATE_BLOB_STORE": str(tmp_path / "blobs")})
    made.start()
    yield made
    made.stop()


def plain(problems: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: one[key] for key in FIELDS} for one in problems]


def by_rest(url: str, token: str, folder: Path, case: Case) -> list[dict[str, Any]]:
    files = [
        {"path": path, "size_bytes": one.stat().st_size, "head": base64.b64encode(one.read_bytes()[: 1 << 20]).decode()}
        for one in sorted(folder.rglob("*"))
        if one.is_file() and not added_part(path := one.relative_to(folder).as_posix())
        if path.startswith(("artifact/", "tokenizer/")) or path == "config.pbtxt"
    ]
    body = {"document": (folder / "release.yaml").read_text(), "files": files}
    headers = {"Authorization": f"Bearer {token}"}
    answer = httpx.post(f"{url}/api/v1/models/{case.model}/releases:check", json=body, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    return plain(answer.json()["problems"])


def by_page(ada: Person, folder: Path, case: Case) -> list[dict[str, Any]]:
    """The list that the page shows, once it has judged this folder."""
    ada.open(f"/models/{case.model}/upload/")
    ada.page.evaluate(
        "document.querySelector('[data-upload]').addEventListener('checked', (e) => { window.seen = e.detail.problems })"
    )
    ada.choose(folder)
    deadline = time.monotonic() + 60
    while (seen := ada.page.evaluate("window.seen")) is None:
        assert time.monotonic() < deadline, ada.page.locator("main").inner_text()
        ada.page.wait_for_timeout(20)
    problems = plain(seen)
    shown = ada.page.locator("main").inner_text()
    return [one for one in problems if one["message"] in shown]


def test_every_door_gives_the_same_list(
    chromium: Browser,
    installation: Installation,
    settings: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings.SECRET_KEY = installation.env["SLUICEGATE_SECRET_KEY"]  # sessions and tokens are signed with it
    user = person("dev")
    actor = actor_for(user)
    served_model(actor, slug="free", contract={})
    served_model(actor, slug="strict", contract=CONTRACT)
    served_model(actor, slug="quick", contract={}, objectives={"attempt_timeout_s": 1})
    token = issue_token(user=user, name="tests", actor=actor)
    monkeypatch.setenv("SLUICEGATE_URL", installation.url)
    monkeypatch.setenv("SLUICEGATE_TOKEN", token)

    def command(*words: str) -> tuple[int, Any]:
        capsys.readouterr()
        code = main([*words, "--json"])
        return code, json.loads(capsys.readouterr().out)

    ada = Person(chromium, installation, user)
    differences = list[str]()
    for case in CASES:
        folder = case.write(tmp_path / "folders" / case.name.replace(" ", "-"))
        code, told = command("check", str(folder))
        checked = plain(told["problems"])
        assert code == (exits.REFUSED if case.expected else exits.OK), case.name
        if [(one["file"], one["field"]) for one in checked] != [
            (file, said.partition("|")[0]) for file, said in case.expected
        ]:
            differences.append(f"{case.name}: {json.dumps(checked, indent=1)}")
            continue
        for one, (_, said) in zip(checked, case.expected, strict=True):
            assert said.partition("|")[2] in one["message"], case.name
        doors: dict[str, Callable[[], list[dict[str, Any]]]] = {
            "rest": lambda folder=folder, case=case: by_rest(installation.url, token, folder, case)
        }
        if is_sent := case.name in THROUGH_EVERY_DOOR:
            doors["page"] = lambda folder=folder, case=case: by_page(ada, folder, case)
        if is_sent and case.expected:
            doors["push"] = lambda folder=folder: plain(command("push", str(folder))[1]["errors"])
        for name, door in doors.items():
            found = door()
            wanted = checked
            if name == "rest":
                wanted = [one for one in checked if not any(word in one["message"] for word in OF_FOLDER)]
            if found != wanted:
                differences.append(
                    f"{case.name} by {name}: {json.dumps(found, indent=1)}\nby check: {json.dumps(wanted, indent=1)}"
                )
    assert not differences, "\n\n".join(differences)
    assert not Release.objects.exists() and len(CASES) >= 40
    assert {case.name for case in CASES} >= THROUGH_EVERY_DOOR
    ada.context.close()
    assert ada.broken == []


def test_the_page_arranges_a_folder_as_the_command_line_does(
    chromium: Browser, installation: Installation, settings: Any
) -> None:
    settings.SECRET_KEY = installation.env["SLUICEGATE_SECRET_KEY"]
    user = person("dev")
    served_model(actor_for(user), slug="free", contract={})
    ada = Person(chromium, installation, user)
    ada.open("/models/free/upload/")
    arranged = """async ([members]) => {
      const {FolderRules} = await import(window.folder), rules = document.querySelector("[data-upload]").dataset.rules;
      const found = new FolderRules(JSON.parse(rules)).arrange(members);
      return {
        files: found.files.map((one) => [one.path, members.indexOf(one.member)]), left: found.left, problems: found.problems,
        document: found.document ? members.indexOf(found.document) : null,
      };
    }"""
    worker = ada.page.locator("[data-upload]").get_attribute("data-worker") or ""
    ada.page.evaluate("(path) => { window.folder = path }", "/static/web/upload/folder.js")
    assert worker.startswith("/static/web/upload/")
    for name, members in MEMBERS.items():
        sent = [{"name": one.name, "kind": one.kind.value, "size": one.size_bytes} for one in members]
        found = ada.page.evaluate(arranged, [sent])
        wanted = arrange(members)
        files = {path: at for path, at in wanted.files.items() if path != "release.yaml"}
        assert dict(found["files"]) == files, name
        assert found["document"] == wanted.files.get("release.yaml"), name
        assert found["left"] == list(wanted.left_out), name
        assert found["problems"] == [one.as_json() for one in wanted.problems], name
    ada.context.close()
    assert ada.broken == []
