"""`sluicegate engine`: an engine plan from an ONNX graph."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from registry.core.engine_flavour import FLAVOURS, STANDARD, Flavour
from registry.core.engine_profile import InputProfile, profile_of
from registry.core.spec import read_spec
from serving.targets.adapters import tensorrt
from sluicegate.cli import exits
from sluicegate.cli.engine_build import Asked, bytes_of, check_capability, outcome, plan_from, section_in, to_build
from sluicegate.cli.errors import refuse
from sluicegate.cli.output import Output
from sluicegate.client.folder import DOCUMENT, read_document

GRAPH: Final = "model.onnx"
ABOUT = """Builds DIR/artifact/model.plan with the TensorRT of this machine, and writes envelope.engine of release.yaml anew. TensorRT
builds for the GPU of this machine. TensorRT for RTX (--flavour rtx) builds for a named compute capability and needs no GPU."""
EPILOG = "exit codes: 0 built; 1 the graph cannot be built; 2 unknown (TensorRT or the GPU is missing); 3 refused."


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("engine", help="Build a TensorRT plan from ONNX, on this machine")
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    build = verbs.add_parser("build", help="Build the plan, and keep it", description=ABOUT, epilog=EPILOG)
    build.add_argument("folder", type=Path, metavar="DIR", help="the release folder, its runtime.backend tensorrt")
    build.add_argument("--onnx", type=Path, metavar="FILE", help=f"the graph (DIR/{GRAPH})")
    build.add_argument(
        "--flavour",
        choices=list(FLAVOURS),
        help="of the plan (envelope.engine.flavour, else the flavour that is installed)",
    )
    build.add_argument(
        "--compute-capability", metavar="X.Y", help="of the GPU that a plan of flavour rtx is for, such as 8.9"
    )
    build.set_defaults(run=run_build)


def run_build(arguments: argparse.Namespace, output: Output) -> int:
    asked = read_asked(arguments, _flavour_to_build(arguments))
    found = outcome(lambda: plan_from(asked, output))
    output.result(found, lines(found))
    return exits.of_build(found["verdict"])


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The result for people, the verdict last."""
    yield from (f"  {detail}" for detail in found["details"])
    if "plan" in found:
        yield f"The plan is {found['plan']}."
    yield f"{found['verdict']}: {found['reason']}"


def _flavour_to_build(arguments: argparse.Namespace) -> Flavour:
    """The flavour that the command names, else that of release.yaml, else that of the installed package."""
    if arguments.flavour:
        return FLAVOURS[arguments.flavour]
    declared = section_in(read_document(arguments.folder)).get("flavour")
    if declared is None:
        return next(iter(tensorrt.installed()), STANDARD)
    if str(declared) not in FLAVOURS:
        said = f"{arguments.folder / DOCUMENT} has the envelope.engine.flavour {str(declared)[:80]!r}, which does not exist."
        raise refuse(said, f"Write {' or '.join(FLAVOURS)}.")
    return FLAVOURS[str(declared)]


def read_asked(arguments: argparse.Namespace, flavour: Flavour) -> Asked:
    """What release.yaml and the options ask for. Raises CommandError, before anything is loaded or written."""
    folder: Path = arguments.folder
    document = read_document(folder)
    capability = _capability(arguments, flavour, section_in(document))
    spec, problems = read_spec(to_build(document, flavour, capability))
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
    bytes_of(onnx, 1)  # refused here if it cannot be read, so that the parser's errors are about the content
    return Asked(folder, onnx, spec, profile, flavour, capability)


def _capability(arguments: argparse.Namespace, flavour: Flavour, engine: Mapping[str, Any]) -> str | None:
    """The compute capability to build for, by the option or by release.yaml; None: that of this machine's GPU. Raises CommandError."""
    asked: str | None = arguments.compute_capability
    if tensorrt.PACKAGES[flavour.name].needs_device:
        if asked:
            said = f"{flavour.product} builds for the GPU of this machine only, not for --compute-capability {asked}."
            raise refuse(said, "Leave the option out, or build with --flavour rtx.")
        return None
    built = engine.get("built_on")
    if asked is None and isinstance(built, dict) and built.get("compute_capability"):
        asked = str(built["compute_capability"])
    if asked is not None:
        check_capability(flavour, asked)
    return asked
