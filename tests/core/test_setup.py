"""`make setup`: what could not be had is left out, and tried again when somebody asks for it, and not each time."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from sluicegate.stack import install


class Part:
    """Something that only tests need; there is a network where `can` says so."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.can, self.tries = folder, False, 0

    def install(self) -> None:
        self.tries += 1
        self.folder.mkdir(exist_ok=True)
        (self.folder / "half").touch()
        if not self.can:
            raise install.LeftOut("no network")


@pytest.fixture
def part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Part:
    made = Part(tmp_path / "kserve")
    monkeypatch.setattr(install, "BUILD", tmp_path)
    monkeypatch.setattr(install, "PARTS", [("kserve", made.install, made.folder, [])])
    return made


def an_hour_later(part: Part) -> None:
    at = time.time() - install.AGAIN_AFTER_S - 1
    os.utime(part.folder.with_name("kserve.stamp"), (at, at))


def test_what_was_left_out_is_tried_again_once_an_hour(part: Part, capsys: pytest.CaptureFixture[str]) -> None:
    assert install.main() == 0 and part.tries == 1 and list(part.folder.iterdir()) == []
    assert "kserve left out (no network)" in capsys.readouterr().out
    assert install.main(tries_again=True) == 0 and part.tries == 1
    an_hour_later(part)
    assert install.main() == 0 and part.tries == 1  # a target that rests on `setup`
    assert install.main(tries_again=True) == install.main(tries_again=True) == 0 and part.tries == 2
    an_hour_later(part)
    part.can = True
    assert install.main(tries_again=True) == 0 and part.tries == 3 and (part.folder / "half").exists()
    an_hour_later(part)
    assert install.main(tries_again=True) == 0 and part.tries == 3


def test_only_make_setup_itself_tries_again() -> None:
    recipe = (install.ROOT / "Makefile").read_text().split("\nsetup:")[1].split("\n\n")[0]
    assert "$(if $(filter setup,$(MAKECMDGOALS)),--again)" in recipe


def test_without_an_index_tensorrt_for_rtx_is_left_out_and_nothing_of_it_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(folder: Path, lock: Path, *, within_s: int) -> None:
        assert lock.is_file() and within_s > 0
        raise install.SetupFailed("uv pip install … failed:\nno index answers")

    folder = tmp_path / "tensorrt-rtx"
    folder.mkdir()
    (folder / "half").touch()
    monkeypatch.setattr(install, "TENSORRT_RTX", folder)
    monkeypatch.setattr(install, "install_folder", unreachable)
    with pytest.raises(install.LeftOut, match="no index answers"):
        install.install_tensorrt_rtx()
    assert not folder.exists()


def test_the_systems_certificates_count_and_pip_takes_a_lock_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Behind a company's certificates uv needs the system's, and pip, which stands in for it, resolves nothing anew."""
    ran: list[tuple[list[str], dict[str, str]]] = []

    def fake(argv: list[str], **how: Any) -> subprocess.CompletedProcess[str]:
        ran.append((argv, how["env"]))
        return subprocess.CompletedProcess(
            argv, 1 if str(install.UV) in argv else 0, "", "invalid peer certificate: UnknownIssuer"
        )

    monkeypatch.delenv("UV_SYSTEM_CERTS", raising=False)
    monkeypatch.setattr(install.subprocess, "run", fake)
    install._install(tmp_path, tmp_path / "some.lock")
    (uv, env), (pip, _) = ran
    assert str(install.UV) in uv and env["UV_SYSTEM_CERTS"] == "1"
    assert pip[-3:] == ["--no-deps", "-r", str(tmp_path / "some.lock")] and "--require-hashes" in pip
    monkeypatch.setenv("UV_SYSTEM_CERTS", "false")
    assert install._cache()["UV_SYSTEM_CERTS"] == "false", "who asks for another store has it"
