"""Runs the product's own parts against a GPU for ten minutes, and writes a report of claims that are proved, refuted or unknown.

Exit codes: 0 no step is refuted · 1 a step is refuted, or a required step is not proved · 2 the proof cannot run (the reason is named).
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu_proof import pack
from benchmarks.gpu_proof.parts import PARTS, ROOT, why_missing

OK, REFUTED, MISSING = 0, 1, 2
#: A command on a machine with a limit of ten minutes ends by itself, with time for the last stage.
_PART_S, _END_S = 530.0, 30.0
#: What the rollout through Envoy needs; it has not been written, and is not pretended.
_ROLLOUT_NEEDS = {
    "gateway": "`.venv-gateway`, which `make setup` makes",
    "control plane": "Django, PostgreSQL and Valkey of `.venv`, which `make setup` makes",
    "archive": "a second archive of these for a machine without a package index; `make gpu-pack` does not build it",
}


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_proof", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--out", type=Path, default=Path("gpu-proof.json"), help="the report (default: %(default)s)")
    found.add_argument("--cpu", action="store_true", help="run without a GPU; steps that need one are unknown")
    found.add_argument(
        "--torch", action="store_true", help="with --cpu: the releases' torch form instead of their numpy form"
    )
    found.add_argument("--part", choices=("main", "rollout"), default="main", help="rollout: through Envoy (never run)")
    found.add_argument("--only", action="append", default=[], metavar="STEP", help="this step; may be repeated")
    found.add_argument(
        "--require", action="append", default=[], metavar="STEP", help="exit 1 if it is not proved; may be repeated"
    )
    found.add_argument(
        "--quick", action="store_true", help="shorter loads and no rollout_slow, for continuous integration"
    )
    found.add_argument(
        "--seconds-scale", type=_scale, default=1.0, metavar="X", help="multiply the seconds of every load"
    )
    found.add_argument("--pack", type=Path, help="the archive of `make gpu-pack`; it is unpacked to a temporary folder")
    found.add_argument("--serving-venv", type=Path, help="the serving environment (default: .venv-serving)")
    found.add_argument("--list", action="store_true", help="list the steps, and end")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    given = parser().parse_args(arguments)
    if given.pack:
        return pack.run_in(given.pack, arguments)
    if given.part == "rollout":
        return _rollout()
    venv = (given.serving_venv or Path(os.environ.get("SLUICEGATE_SERVING_VENV") or ROOT / ".venv-serving")).absolute()
    missing = why_missing(["modules"], venv)
    if missing:
        return _refuse(missing)
    if given.list:
        return _list()
    form = "torch" if given.torch or not given.cpu else "numpy"
    device = "cpu" if given.cpu else "gpu"
    missing = why_missing(["triton", *([] if given.cpu else ["gpu", "torch", "nvcc"])], venv)
    if not given.cpu and "gpu" in missing:
        return _refuse(missing)
    why = missing.get("torch", "")
    if given.cpu:
        why = why_missing(["torch-any"], venv).get("torch-any", "") if form == "torch" else ""
        missing |= dict.fromkeys(("gpu", "torch", "nvcc"), "`--cpu` was given")
    needed = {name: reason for name, reason in (("triton", missing.get("triton", "")), ("torch", why)) if reason}
    if needed and given.cpu:
        return _refuse(needed)
    if unwritable := _why_not_written(given.out):
        return _say(f"The report cannot be written to {given.out}: {unwritable}. Name another file with --out.")
    code = _prove(given, venv, device, form, missing)
    return code or (_refuse(needed) if needed else OK)  # what needs no server was measured all the same


def _prove(given: argparse.Namespace, venv: Path, device: str, form: str, missing: dict[str, str]) -> int:
    from benchmarks.gpu_proof.machine import machine, revision
    from benchmarks.gpu_proof.report import Report
    from benchmarks.gpu_proof.scene import Config
    from benchmarks.gpu_proof.steps import MAIN
    from benchmarks.gpu_proof.steps.clean import device_memory_mib
    from benchmarks.gpu_proof.watchdog import run_all

    steps = [step for step in MAIN if (step.name in given.only if given.only else step.is_quick or not given.quick)]
    unknown_names = sorted({*given.only, *given.require} - {step.name for step in MAIN})
    if unknown_names:
        parser().error(f"there is no step {', '.join(unknown_names)}; --list names them")
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    report = Report(given.out, part="main", device=device, form=form, machine=machine(), revision=revision())
    work = Path(tempfile.mkdtemp(prefix="gpu-proof-"))
    work.chmod(0o755)  # a server that runs as a user of its own passes through it
    try:
        baseline = {"device_memory_mib": device_memory_mib()}
        config = Config(work, venv, device, form, given.quick, given.seconds_scale, given.out.absolute(), baseline)

        def record(step, outcome) -> None:  # type: ignore[no-untyped-def]
            report.add(step, outcome)
            print(f"{outcome.verdict:8} {step.name:15} {outcome.seconds:5.1f} s  {outcome.sentence}", flush=True)

        job = {"part": "main", "config": config.as_json()}
        for is_end, until_s in ((False, began + _PART_S), (True, began + _PART_S + _END_S)):
            staged = [step for step in steps if (step.stage == "end") is is_end]
            run_all(staged, job, record, until_s=until_s, missing=missing)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        report.end()
    verdicts = [step["verdict"] for step in report.body["steps"]]
    proved = {step["name"] for step in report.body["steps"] if step["verdict"] == "proved"}
    unproved = sorted(set(given.require) - proved)
    counted = ", ".join(f"{verdicts.count(name)} {name}" for name in ("proved", "refuted", "unknown"))
    print(f"{counted} in {time.monotonic() - began:.0f} s, on the {device}; {given.out}")
    if unproved:
        print(f"Required, and not proved: {', '.join(unproved)}.", file=sys.stderr)
    return REFUTED if report.is_refuted or unproved else OK


def _scale(text: str) -> float:
    scale = float(text)
    if not 0 < scale <= 10:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0 and up to 10")
    return scale


def _why_not_written(path: Path) -> str:
    """Why no report can be written there; empty if one can."""
    if path.is_dir():
        return "it is a folder"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def _say(sentence: str) -> int:
    print(sentence, file=sys.stderr)
    return MISSING


def _list() -> int:
    from benchmarks.gpu_proof.steps import MAIN

    for step in MAIN:
        print(f"{step.name:15} {step.claim}. Needs: {', '.join(step.needs) or 'nothing'}.")
    return OK


def _refuse(missing: dict[str, str]) -> int:
    for name, why in missing.items():
        print(f"missing: {PARTS[name].name}: {why}. It comes with {PARTS[name].brought_by}.", file=sys.stderr)
    return MISSING


def _rollout() -> int:
    print("The rollout through Envoy on a GPU was never run: its steps are not written. It needs:", file=sys.stderr)
    for name, brought_by in _ROLLOUT_NEEDS.items():
        print(f"missing: {name}: {brought_by}.", file=sys.stderr)
    return MISSING
