"""`sluicegate engine`: an engine plan from an ONNX graph, held against the graph itself if this machine has the plan's GPU."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from registry.core.engine_flavour import FLAVOURS, STANDARD, Flavour
from registry.core.engine_profile import InputProfile, profile_of
from registry.core.formats.tensorrt import MAGICS
from registry.core.kinds import BACKEND_FILES
from registry.core.spec import read_spec
from serving.adapters import tensorrt
from serving.adapters.cuda import Cuda
from serving.adapters.onnx_reference import OnnxReference
from sluicegate.cli import engine_report
from sluicegate.cli.engine_build import bytes_of, check_capability, outcome, plan_from, section_in, to_build
from sluicegate.cli.engine_comparison import Asked, compared, examples_of
from sluicegate.cli.errors import refuse
from sluicegate.cli.output import Output
from sluicegate.client.folder import DOCUMENT, read_document

PLAN: Final = BACKEND_FILES["tensorrt"]
GRAPH: Final = "model.onnx"
ABOUT = """Builds DIR/artifact/model.plan with the TensorRT of this machine and compares its answers with ONNX Runtime's: each item
alone, in batches, among other neighbours and in equal rows, at every corner of the profile. A plan that passes is put into the folder,
and envelope.engine of release.yaml is written anew. Any other plan stays beside it, as DIR/model.plan. TensorRT builds for the GPU of
this machine. TensorRT for RTX (--flavour rtx) builds for a named compute capability and needs no GPU; without that GPU nothing can be
compared, and the verdict is unknown, unless --without-comparison takes the plan as it is."""
ABOUT_COMPARE = (
    """Compares the answers of a plan that is there with ONNX Runtime's, as `engine build` does, and writes nothing."""
)
EPILOG = (
    "exit codes: 0 passed, or built with --without-comparison; 1 failed; "
    "2 unknown (TensorRT or the GPU is missing, or the answers prove nothing); 3 refused."
)


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
    build.add_argument(
        "--flavour",
        choices=list(FLAVOURS),
        help="of the plan (envelope.engine.flavour, else the flavour that is installed)",
    )
    build.add_argument(
        "--compute-capability", metavar="X.Y", help="of the GPU that a plan of flavour rtx is for, such as 8.9"
    )
    build.add_argument(
        "--without-comparison",
        action="store_true",
        help="put the plan into the folder without running it, and record that",
    )
    compare.add_argument("--plan", type=Path, metavar="FILE", help=f"the plan (DIR/{PLAN})")
    build.set_defaults(run=run_build)
    compare.set_defaults(run=run_compare)


def run_build(arguments: argparse.Namespace, output: Output) -> int:
    flavour = _flavour_to_build(arguments)
    asked = read_asked(arguments, flavour)
    return engine_report.tell(output, outcome(lambda: plan_from(asked, output)))


def run_compare(arguments: argparse.Namespace, output: Output) -> int:
    plan = arguments.plan or arguments.folder / PLAN
    if not plan.is_file():
        raise refuse(f"There is no plan {plan}.", "Build it with sluicegate engine build, or name it with --plan.")
    flavour = MAGICS.get(bytes_of(plan, 4), STANDARD)
    asked = read_asked(arguments, flavour)

    def compare() -> dict[str, Any]:
        tensorrt.load(flavour)
        reference = OnnxReference(asked.onnx)
        examples, held = examples_of(asked), bytes_of(plan)
        with Cuda() as cuda:
            return {"plan": str(plan), **compared(asked, held, cuda, reference, examples)}

    return engine_report.tell(output, outcome(compare))


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
    is_build = arguments.run is run_build
    capability = _capability(arguments, flavour, section_in(document)) if is_build else None
    spec, problems = read_spec(to_build(document, flavour, capability) if is_build else document)
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
    bytes_of(onnx, 1)  # refused here if it cannot be read, so that the parser's errors are about the content
    is_compared = not (is_build and arguments.without_comparison)
    examples, within, seed = arguments.examples, arguments.within, arguments.seed
    return Asked(folder, onnx, spec, profile, flavour, examples, within, seed, capability, is_compared)


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
