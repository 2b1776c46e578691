"""A real Alertmanager for tests, alone or in a cluster of none."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.support.rigs.gateway_rig import free_port, wait_until
from tests.support.rigs.parts import alertmanager

#: Debian's program reads its templates here, and fails where the package is unpacked and not installed.
_TEMPLATES = b"/usr/share/prometheus/alertmanager"


class AlertmanagerProcess:
    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.folder, self.port = folder, free_port()
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "alertmanager.yml").write_text(json.dumps(config))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        argv = [
            str(_program(self.folder)),
            f"--config.file={self.folder / 'alertmanager.yml'}",
            f"--storage.path={self.folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--cluster.listen-address=",
            "--log.level=debug",
        ]
        with (self.folder / "alertmanager.log").open("ab") as log:
            self._process = subprocess.Popen(argv, stdout=log, stderr=log)
        wait_until(self._is_ready, "Alertmanager to be ready")

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
            self._process = None

    def alerts(self) -> list[dict[str, Any]]:
        """The alerts that are active."""
        found: list[dict[str, Any]] = json.loads(self._get("/api/v2/alerts")[1])
        return found

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError):
            return self._get("/-/ready")[0] == 200
        return False

    def _get(self, path: str) -> tuple[int, bytes]:
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(line):
            line.request("GET", path)
            answer = line.getresponse()
            return answer.status, answer.read()


def _program(folder: Path) -> Path:
    """The installed program, or a copy of the unpacked one that reads its templates from where they are."""
    found = Path(str(alertmanager()))
    if Path(_TEMPLATES.decode()).is_dir():
        return found
    short = Path(tempfile.mkdtemp(prefix="am", dir="/tmp"))
    shutil.copytree(found.parents[1] / "share" / "prometheus" / "alertmanager", short, dirs_exist_ok=True)
    padded = str(short).encode().rjust(len(_TEMPLATES), b"/")
    program = folder / "prometheus-alertmanager"
    program.write_bytes(found.read_bytes().replace(_TEMPLATES, padded))
    program.chmod(0o755)
    return program


@contextlib.contextmanager
def alertmanager_process(folder: Path, config: Mapping[str, Any]) -> Iterator[AlertmanagerProcess]:
    process = AlertmanagerProcess(folder, config)
    try:
        process.start()
        yield process
    finally:
        process.stop()
