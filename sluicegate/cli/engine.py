"""`sluicegate engine`: a TensorRT plan from an ONNX graph, on the machine that it is for, held against the graph itself."""

from __future__ import annotations

import argparse
import json
import re
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from ledger.adapters.files import write_whole
from registry.adapters.yaml_edit import with_section
from registry.core.engine_profile import InputProfile, profile_of
from registry.core.file_rules import BACKEND_FILES
from registry.core.spec import read_spec
from serving.adapters import tensorrt
from serving.adapters.cuda import Cuda, CudaError
from serving.adapters.onnx_reference import GraphError, OnnxReference
from sluicegate.cli import engine_report
from sluicegate.cli.engine_comparison import Asked, compared, examples_of
from sluicegate.cli.errors import refuse
from sluicegate.cli.output import Output
from sluicegate.client.documents import put_text, text_of
from sluicegate.client.folder import DOCUMENT, read_document

PLAN: Final = BACKEND_FILES["tensorrt"]
#: Beside release.yaml nothing is sent: the graph, and a plan that did not pass.
GRAPH, LOOSE_PLAN = "model.onnx", "model.plan"
ABOUT = """Builds DIR/artifact/model.plan with the TensorRT of this machine, for the GPU of this machine, and compares its answers
with ONNX Runtime's: each item alone, in batches, among other neighbours and in equal rows, at every corner of the profile. What
passed is put into the folder, and envelope.engine of release.yaml is written anew; what did not stays beside it, as DIR/model.plan."""
ABOUT_COMPARE = (
    """Compares the answers of a plan that is there with ONNX Runtime's, as `engine build` does, and writes nothing."""
)
EPILOG = "exit codes: 0 passed, 1 failed, 2 unknown (TensorRT or a GPU is not here, or it cannot be told), 3 refused."


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("engine", help="Build a TensorRT plan from ONNX and compare the two, on this machine")
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    build = verbs.add_parser("build", help="Build the plan, compare, and keep it", description=ABOUT, epilog=EPILOG)
    compare = verbs.add_parser("compare", help="Compare a plan", description=ABOUT_COMPARE, epilog=EPILOG)
    for verb in (build, compare):
        verb.add_argument("folder", type=Path, metavar="DIR", help="the release folder, its runtime.backend tensorrt")
        verb.add_argument("--onnx", type=Path, metavar="FILE", help=f"the graph (DIR/{GRAPH})")
        verb.add_argument(
            "--examples", type=Path, metavar="JSONL", help='lines with {"inputs": …}, as in a golden set, to compare on'
        )
        verb.add_argument(
            "--within", type=float, metavar="FRAC", help="what an element may be off by (rounding of its type)"
        )
        verb.add_argument("--seed", type=int, default=1, metavar="N", help="of made-up inputs (1)")
    compare.add_argument("--plan", type=Path, metavar="FILE", help=f"the plan (DIR/{PLAN})")
    build.set_defaults(run=run_build)
    compare.set_defaults(run=run_compare)


def run_build(arguments: argparse.Namespace, output: Output) -> int:
    asked = read_asked(arguments)
    return engine_report.tell(output, _outcome(lambda: _build(asked, output)))


def run_compare(arguments: argparse.Namespace, output: Output) -> int:
    asked, plan = read_asked(arguments), arguments.plan or arguments.folder / PLAN
    if not plan.is_file():
        raise refuse(f"There is no plan {plan}.", "Build it with sluicegate engine build, or name it with --plan.")

    def compare() -> dict[str, Any]:
        tensorrt.load()
        reference = OnnxReference(asked.onnx)
        examples, held = examples_of(asked), _bytes_of(plan)
        with Cuda() as cuda:
            return {"plan": str(plan), **compared(asked, held, cuda, reference, examples)}

    return engine_report.tell(output, _outcome(compare))


def read_asked(arguments: argparse.Namespace) -> Asked:
    """What release.yaml and the options ask for. Raises CommandError, before anything is loaded or written."""
    folder: Path = arguments.folder
    spec, problems = read_spec(read_document(folder))
    profile: tuple[InputProfile, ...] = ()
    if spec is not None:
        if spec.backend != "tensorrt":
            said = f"{folder / DOCUMENT} names the backend {spec.backend}, which loads no plan."
            raise refuse(said, "Write runtime.backend: tensorrt.")
        profile, problems = profile_of(spec.serving, spec.envelope)
    if problems or spec is None:
        errors = [one.as_json() for one in problems]
        raise refuse(f"{folder / DOCUMENT} cannot be used.", "Mend it, then repeat the command.", errors=errors)
    onnx: Path = arguments.onnx or folder / GRAPH
    if not onnx.is_file():
        raise refuse(f"There is no ONNX graph {onnx}.", "Put it there, or name it with --onnx.")
    if arguments.within is not None and not 0 < arguments.within < 1:
        raise refuse(f"--within {arguments.within:g} is no tolerance.", "Write a share, such as 0.01.")
    if arguments.seed < 0:
        raise refuse(f"--seed {arguments.seed} is no seed.", "Write a whole number, 0 or more.")
    _bytes_of(onnx, 1)  # a graph that may not be read says nothing of what is in it
    return Asked(folder, onnx, spec, profile, arguments.examples, arguments.within, arguments.seed)


def _outcome(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What came of it. Only the graph and the plan can fail: what else breaks says nothing of them, and is unknown."""
    try:
        return work()
    except (tensorrt.BadGraph, tensorrt.BadPlan) as error:
        return {"verdict": "failed", "reason": str(error), "details": list(error.details)}
    except tensorrt.TensorRTError as error:
        return {"verdict": "unknown", "reason": str(error), "details": list(error.details)}
    except (CudaError, GraphError) as error:
        return {"verdict": "unknown", "reason": str(error), "details": []}


def _build(asked: Asked, output: Output) -> dict[str, Any]:
    trt, declared = tensorrt.load(), asked.declared
    options = tensorrt.BuildOptions(
        version_compatible=declared.get("version_compatible", False),
        hardware_compatibility=declared.get("hardware_compatibility", "none"),
        tf32=declared.get("precision") != "fp32",
    )
    with Cuda() as cuda:
        graph = tensorrt.Graph(asked.onnx, asked.profile)
        reference, examples = OnnxReference(asked.onnx), examples_of(asked)  # before the long work
        output.say(f"Building with TensorRT {trt.__version__} on {cuda.name}; this takes minutes.")
        plan = graph.build(options)
        loose = asked.folder / LOOSE_PLAN
        _write(loose, plan)
        found = {"plan": str(loose), **_outcome(lambda: compared(asked, plan, cuda, reference, examples))}
        built_on = {
            "sku": cuda.name.replace(" ", "-"),
            "compute_capability": cuda.compute_capability,
            "driver": cuda.driver,
        }
    engine = engine_section(declared, trt.__version__, built_on, asked.profile)
    if found["verdict"] == "passed":
        found["plan"] = str(_put_in_place(asked, loose, engine))
    return {**found, "engine": engine}


def engine_section(
    declared: dict[str, Any], version: str, built_on: dict[str, str | None], profile: Sequence[InputProfile]
) -> dict[str, Any]:
    """`envelope.engine` of a plan that was built here. What only a person knows of it stays as it was declared."""
    told = re.match(r"\d+(\.\d+){0,3}", version)
    driver = built_on["driver"]
    known = {name: value for name, value in built_on.items() if value}
    if driver and not re.fullmatch(r"\d+(\.\d+){0,3}", driver):
        del known["driver"]
    return {
        **declared,
        "type": "trt-plan",
        **({"builder_version": told[0]} if told else {}),
        "built_on": known,
        "optimization_profiles": [one.as_json() for one in profile],
    }


def _put_in_place(asked: Asked, loose: Path, engine: dict[str, Any]) -> Path:
    """Raises CommandError where release.yaml cannot take the section; the plan then stays where it is."""
    document, place = asked.folder / DOCUMENT, asked.folder / PLAN
    before = _bytes_of(document)
    try:
        text = with_section(text_of(document), "engine", engine)
    except ValueError as error:
        said = f"The plan passed, and {document} cannot be written: {error}."
        raise refuse(said, f"Write envelope.engine: {json.dumps(engine)}, and move {loose} to {PLAN}.") from error
    put_text(document, text)
    try:
        place.parent.mkdir(exist_ok=True)
        loose.replace(place)
    except BaseException as error:  # also Ctrl-C: the section never tells of another plan than the one that is sent
        _write(document, before)
        if not isinstance(error, OSError):
            raise
        said = f"The plan passed, and cannot be moved to {place}: {error.strerror}."
        raise refuse(said, "Make it writable, and repeat the command.") from error
    return place


def _bytes_of(path: Path, most: int = -1) -> bytes:
    """The first `most` bytes, or all. Raises CommandError."""
    try:
        with path.open("rb") as file:
            return file.read(most)
    except OSError as error:
        raise refuse(f"{path} cannot be read: {error.strerror}.", "Make it readable.") from error


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all, and as readable as what was there. Raises CommandError."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
        write_whole(path, data)
        if mode is not None:
            path.chmod(mode)
    except OSError as error:
        raise refuse(f"{path} cannot be written: {error.strerror}.", "Make room, or make it writable.") from error
