"""`.ci/run` on a small tree with a `make` that prints the lines of a suite: users, environment, last line, and nothing left behind."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65_534
MAKEFILE = """
setup setup-tests:
\t@echo set up by $$(id -un)
lint:
\t@false
test:
\t@echo tests of $$(id -un) in $(CURDIR) with $(ARGS); env | sort | sed 's/^/variable /'; ls; cat new edited staged
\t@test ! -e slow || { touch /tmp/$$(id -un); sleep 600; }
\t@echo '==== 1 failed, 5 passed, 2 skipped, 7 deselected, 1 error in 3.00s ===='; false
"""


@pytest.fixture
def tree() -> Iterator[Path]:
    """A checkout with new, changed and deleted files that are not committed, staged ones too. Others may not enter it."""
    with tempfile.TemporaryDirectory(prefix="sluicegate-ci-test-", dir="/var/tmp") as name:
        made = Path(name) / "tree"
        (made / ".ci").mkdir(parents=True)
        shutil.copy(ROOT / ".ci" / "run", made / ".ci")
        packages = made / ".ci" / "packages"
        packages.write_text("#!/bin/sh\nexit 0\n")
        packages.chmod(0o755)
        (made / "Makefile").write_text(MAKEFILE)
        (made / ".gitignore").write_text("/.build\n")
        for name in ("gone", "edited", "staged_gone"):
            (made / name).write_text("as committed\n")
        git = ["git", "-c", "user.name=test", "-c", "user.email=test@example.com", "-c", f"safe.directory={made}"]
        for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
            subprocess.run([*git, *words], cwd=made, check=True)
        (made / "gone").unlink()
        (made / "new").write_text("the new file\n")
        (made / "edited").write_text("the staged change\n")
        (made / "staged").write_text("the staged file\n")
        for words in (["add", "edited", "staged"], ["rm", "-q", "staged_gone"]):
            subprocess.run([*git, *words], cwd=made, check=True)
        yield made


def run(tree: Path, *parts: str, **how: Any) -> subprocess.Popen[str]:
    environment = {
        "PATH": os.defpath,
        "CI": "true",
        "SECRET": "x",
        "UV_DEFAULT_INDEX": "https://index",
        **how.pop("env", {}),
    }
    return subprocess.Popen(
        ["env", "--default-signal=INT", tree / ".ci" / "run", *parts],  # a caller in the background ignores it
        cwd="/",
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        **how,
    )


def leftovers() -> list[str]:
    """Users and folders of `.ci/run` that are still there."""
    users = [one.pw_name for one in pwd.getpwall() if one.pw_name.startswith("sg-ci-")]
    return users + [one.name for one in Path("/tmp").glob("sg-ci-*")]


def test_an_ordinary_user_runs_the_suite_as_that_user(tree: Path) -> None:
    who: dict[str, Any] = {}
    if os.getuid() == 0:
        who = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        for path in (tree.parent, tree, *tree.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
    with run(tree, "lint", "tests", **who) as process:
        said = process.communicate(timeout=150)[0]
    assert process.returncode == 1
    me = pwd.getpwuid(NOBODY if who else os.getuid()).pw_name
    assert f"tests of {me} in {tree} with" in said and "not needs_root" not in said
    assert re.search(r"^  Lint: \d+ s, failed$", said, re.M) and re.search(r"^  Tests: \d+ s, failed$", said, re.M)
    assert said.splitlines()[-1] == "5 passed, 2 failed, 2 skipped"


@pytest.mark.needs_root
def test_root_runs_the_suite_as_a_user_of_its_own_and_then_what_needs_root(tree: Path) -> None:
    before = leftovers()
    with run(tree, "tests", env={"ARGS": "-k one"}) as process:
        said = process.communicate(timeout=150)[0]
    assert process.returncode == 1
    theirs, ours = said.split("=== Tests as root", 1)
    name = re.search(r"tests of (sg-ci-\d+) in (/tmp/sg-ci-\w+/tree) with -m not needs_root -k one", theirs)
    assert name, said
    assert f"tests of root in {tree} with -m needs_root or root_too -k one" in ours
    variables = dict(re.findall(r"^variable (\w+)=(.*)$", theirs, re.M))
    assert (variables["HOME"], variables["CI"]) == (name[2].removesuffix("/tree"), "true")
    assert variables["UV_DEFAULT_INDEX"] == "https://index" and "SECRET" not in variables
    assert all(text in theirs for text in ("the new file", "the staged change", "the staged file"))
    assert "as committed" not in theirs and not re.search(r"^(staged_)?gone$", theirs, re.M)
    assert said.splitlines()[-1] == "10 passed, 4 failed, 4 skipped"
    assert set(leftovers()) <= set(before)


@pytest.mark.needs_root
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_users_processes_and_removes_the_user(tree: Path, number: signal.Signals) -> None:
    before = leftovers()
    (tree / "slow").touch()
    with run(tree, "tests") as process:
        deadline = time.monotonic() + 60
        while not (begun := set(leftovers()) - set(before)) or not any(Path("/tmp", one).is_file() for one in begun):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        process.communicate(timeout=150)
    assert process.returncode == 128 + number
    assert set(leftovers()) <= set(before)
