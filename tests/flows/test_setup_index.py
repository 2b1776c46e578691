"""Set-up against a package index: behind a private authority that only the system knows, and by pip alone from an empty cache.

The installers are real: the uv that set-up installed, and the pip of an environment of its own. The index holds three small packages.
"""

from __future__ import annotations

import hashlib
import shutil
import ssl
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sluicegate.stack import install
from tests.support.rigs.certificates import Authority

pytestmark = pytest.mark.slow

#: Package → (version, what it needs). `asks` needs an extra of `tiny`, which a lock names without it.
PACKAGES = {"tiny": ("1.0", 'other; extra == "more"'), "other": ("2.0", ""), "asks": ("3.0", "tiny[more]")}
#: What set-up does, in a process of its own: argv is uv, the installer's folder, the environment to fill, and the lock.
INSTALLS = """
import sys
from pathlib import Path
from sluicegate.stack import install
install.UV, install.INSTALLER, venv, lock = map(Path, sys.argv[1:])
install._install(venv, lock)
"""
#: In a mount namespace, the system's certificates are those of a folder: argv is the folder, then a command.
BEHIND = 'mount --bind "$0" /etc/ssl/certs && exec "$@"'
UNSHARE = ("unshare", "--user", "--map-root-user", "--mount")


@dataclass
class Index:
    """A package index on loopback, over http and https."""

    folder: Path
    http_port: int
    https_port: int
    authority: Authority

    def lock(self, *names: str) -> Path:
        lines = [
            f"{name}=={PACKAGES[name][0]} --hash=sha256:{hashlib.sha256(self.wheel(name).read_bytes()).hexdigest()}"
            for name in names
        ]
        file = self.folder / "some.lock"
        file.write_text("\n".join(lines) + "\n")
        return file

    def wheel(self, name: str) -> Path:
        return self.folder / "served" / f"{name}-{PACKAGES[name][0]}-py3-none-any.whl"


def make_wheel(path: Path, name: str, version: str, needs: str) -> None:
    info = f"{name}-{version}.dist-info"
    requires = f"Requires-Dist: {needs}\n" if needs else ""
    extra = "Provides-Extra: more\n" if "extra" in needs else ""
    files = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{extra}{requires}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{one},,\n" for one in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(path, "w") as wheel:
        for one, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(one, text)


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    authority = Authority(tmp_path)
    site = authority.server("localhost")
    served = tmp_path / "served"
    served.mkdir()
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=served)) for _ in range(2)]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(site.certificate, site.key)
    servers[1].socket = context.wrap_socket(servers[1].socket, server_side=True)
    for server in servers:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    made = Index(tmp_path, servers[0].server_port, servers[1].server_port, authority)
    for name, (version, needs) in PACKAGES.items():
        wheel = made.wheel(name)
        make_wheel(wheel, name, version, needs)
        page = served / "simple" / name
        page.mkdir(parents=True)
        (page / "index.html").write_text(f'<a href="/{wheel.name}">{wheel.name}</a>')
    yield made
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def installer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the pip that this Python brings along."""
    folder = tmp_path_factory.mktemp("installer")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, capture_output=True)
    return folder


@pytest.fixture
def venv(tmp_path: Path, installer: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True, capture_output=True)
    (tmp_path / "venv" / "installer").symlink_to(installer)
    return tmp_path / "venv"


def installs(index: Index, venv: Path, lock: Path, uv: str, *before: str, **variables: str) -> str:
    """What set-up prints as it installs the lock, with an empty cache and an empty environment."""
    home = index.folder / "home"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(install.ROOT), **variables}
    command = [*before, sys.executable, "-c", INSTALLS, uv, str(venv / "installer"), str(venv), str(lock)]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=150, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def installed(venv: Path) -> set[str]:
    return {path.name.partition("-")[0] for path in venv.glob("lib/python3*/site-packages/*.dist-info")} & set(PACKAGES)


@pytest.fixture
def behind(tmp_path: Path, index: Index) -> tuple[str, ...]:
    """Words before a command that let it trust the index's private authority by the system's certificates alone."""
    certificates = tmp_path / "certificates"
    certificates.mkdir()
    shutil.copy(index.authority.file, certificates / "ca-certificates.crt")
    words = (*UNSHARE, "sh", "-c", BEHIND, str(certificates))
    trial = subprocess.run([*words, "true"], capture_output=True, text=True, check=False)
    if trial.returncode:
        pytest.skip(f"this machine grants no mount namespace ({trial.stderr.strip()})")
    return words


def test_uv_trusts_the_systems_certificates_by_default(index: Index, venv: Path, behind: tuple[str, ...]) -> None:
    url = f"https://localhost:{index.https_port}/simple"
    said = installs(index, venv, index.lock("asks", "tiny", "other"), str(install.UV), *behind, UV_DEFAULT_INDEX=url)
    assert installed(venv) == set(PACKAGES) and "uv could not" not in said


def test_pip_takes_over_behind_a_private_authority(index: Index, venv: Path, behind: tuple[str, ...]) -> None:
    """Without the system's certificates uv refuses the index, which shows that the test above can fail."""
    url = f"https://localhost:{index.https_port}/simple"
    named = {"UV_DEFAULT_INDEX": url, "PIP_INDEX_URL": url, "UV_SYSTEM_CERTS": "false"}
    said = installs(index, venv, index.lock("asks", "tiny", "other"), str(install.UV), *behind, **named)
    assert installed(venv) == set(PACKAGES) and "uv could not" in said and "trying pip" in said


def test_pip_alone_installs_a_lock_whose_extras_are_not_pinned(index: Index, venv: Path) -> None:
    url = f"http://127.0.0.1:{index.http_port}/simple"
    said = installs(index, venv, index.lock("asks", "tiny", "other"), "/bin/false", PIP_INDEX_URL=url)
    assert installed(venv) == set(PACKAGES) and "trying pip" in said


def test_a_file_that_the_lock_does_not_name_is_refused(index: Index, venv: Path) -> None:
    lock = index.lock("tiny")
    make_wheel(index.wheel("tiny"), "tiny", "1.0", "other")  # another file under the same name
    url = f"http://127.0.0.1:{index.http_port}/simple"
    with pytest.raises(AssertionError, match="DO NOT MATCH THE HASHES"):
        installs(index, venv, lock, "/bin/false", PIP_INDEX_URL=url)
    assert installed(venv) == set()
