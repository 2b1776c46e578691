"""`make setup`: what could not be had is left out, and tried again when somebody asks for it, and not each time."""

from __future__ import annotations

import os
import re
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
    monkeypatch.setattr(install, "PARTS", [])
    monkeypatch.setattr(install, "TEST_PARTS", [("kserve", made.install, made.folder, [])])
    return made


def an_hour_later(part: Part) -> None:
    at = time.time() - install.AGAIN_AFTER_S - 1
    os.utime(part.folder.with_name("kserve.stamp"), (at, at))


def test_what_was_left_out_is_tried_again_once_an_hour(part: Part, capsys: pytest.CaptureFixture[str]) -> None:
    assert install.main(for_tests=True) == 0 and part.tries == 1 and list(part.folder.iterdir()) == []
    assert "kserve left out (no network)" in capsys.readouterr().out
    assert install.main(tries_again=True, for_tests=True) == 0 and part.tries == 1
    an_hour_later(part)
    assert install.main(for_tests=True) == 0 and part.tries == 1  # a target that rests on `setup-tests`
    assert (
        install.main(tries_again=True, for_tests=True) == install.main(tries_again=True, for_tests=True) == 0
        and part.tries == 2
    )
    an_hour_later(part)
    part.can = True
    assert install.main(tries_again=True, for_tests=True) == 0 and part.tries == 3 and (part.folder / "half").exists()
    an_hour_later(part)
    assert install.main(tries_again=True, for_tests=True) == 0 and part.tries == 3


def targets() -> dict[str, tuple[list[str], str]]:
    """Target of the Makefile → the targets before it, and its recipe."""
    found = re.findall(
        r"^([a-z-]+):([^#\n=]*)## [^\n]*\n((?:\t[^\n]*\n?)*)", (install.ROOT / "Makefile").read_text(), re.M
    )
    return {name: (needs.split(), recipe) for name, needs, recipe in found}


def test_only_make_setup_tests_itself_tries_again() -> None:
    assert "$(if $(filter setup-tests,$(MAKECMDGOALS)),--again)" in targets()["setup-tests"][1]
    assert "--again" not in targets()["setup"][1]


def test_the_demo_installs_nothing_that_only_tests_need(part: Part) -> None:
    assert {name: targets()[name][0] for name in ("up", "demo", "test")} == {
        "up": ["setup"],
        "demo": ["setup"],
        "test": ["setup-tests"],
    }
    assert "--tests" in targets()["setup-tests"][1] and "--tests" not in targets()["setup"][1]
    assert install.main() == 0 and part.tries == 0 and not part.folder.exists()


@pytest.mark.parametrize(
    ("environment", "config", "wanted"),
    [
        ({}, "[global]\nindex-url = https://index\n", "system"),
        ({"SSL_CERT_FILE": "other"}, "", "other"),
        ({"PIP_CERT": "mine"}, "", None),
        ({"CURL_CA_BUNDLE": "mine"}, "", None),
        ({}, "[install]\ncert = /mine\n", None),
        ({}, "no configuration", "system"),
    ],
)
def test_pip_gets_the_systems_certificates_if_nobody_names_others(
    environment: dict[str, str], config: str, wanted: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("system", "other", "mine"):
        (tmp_path / name).touch()
    (tmp_path / "pip.conf").write_text(config)
    monkeypatch.setattr(install, "SYSTEM_CERTIFICATES", (str(tmp_path / "absent"), str(tmp_path / "system")))
    for name in ("PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    for name, value in environment.items():
        monkeypatch.setenv(name, str(tmp_path / value))
    assert install._cache().get("PIP_CERT") == (str(tmp_path / wanted) if wanted else None)


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
