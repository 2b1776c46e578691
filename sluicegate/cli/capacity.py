"""`sluicegate plan`: replicas for a forecast; `sluicegate release envelope`: measurements for the next release.yaml."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accounts.core.quantities import share_text
from sluicegate.cli import exits
from sluicegate.cli.errors import refuse
from sluicegate.cli.output import Output, short
from sluicegate.cli.session import connect
from sluicegate.client.documents import put_text, read_yaml, text_of
from sluicegate.client.names import release_path

#: (option, the API's field, its type, its word in the help, what it says)
_OPTIONS = (
    ("--growth", "growth_frac", float, "FRAC", "growth of the peak until then: 0.2 is a fifth"),
    ("--burst", "burst_factor", float, "TIMES", "a burst's rate, in parts of the peak"),
    ("--retries", "retry_frac", float, "FRAC", "requests that are sent again, per request"),
    ("--ramp", "ramp_frac_per_min", float, "FRAC", "growth of the load in a minute, while a replica starts"),
    ("--spare", "spare", int, "N", "replicas that may be lost at the peak (1)"),
    ("--surge", "surge_frac", float, "FRAC", "replicas that come up beside the others in a rollout (1: as many)"),
    ("--mean", "mean_per_s", float, "RATE", "requests a second over all hours, for the cost of a request"),
)


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "plan",
        help="Replicas and cost for a forecast, from measurements",
        description="Ends with 0 if it can compute the replicas, and with 1 if there are no measurements; "
        "then it applies nothing.",
    )
    parser.add_argument("release", metavar="RELEASE")
    parser.add_argument(
        "--peak", dest="peak_per_s", type=float, required=True, metavar="RATE", help="requests a second"
    )
    for option, field, kind, word, says in _OPTIONS:
        parser.add_argument(option, dest=field, type=kind, metavar=word, help=says, default=None)
    parser.add_argument(
        "--price", action="append", default=[], metavar="HARDWARE=PER_HOUR", help="of one replica; again for more"
    )
    parser.add_argument(
        "--apply",
        action="store_true",
        help="set this number of replicas, unless another person changes it meanwhile",
    )
    parser.add_argument("--environment", default="production", metavar="ENVIRONMENT", help="(production)")
    parser.add_argument("--reason", default="", help="reason for the log (default: the forecast)")
    parser.set_defaults(run=run_plan)


def add_envelope_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("envelope", help="Print the measured envelope, or write it into the next release.yaml")
    parser.add_argument("release", metavar="RELEASE")
    parser.add_argument(
        "--into", type=Path, metavar="DIR", help="write these sections into the release.yaml of this folder"
    )
    parser.set_defaults(run=run_envelope)


def run_envelope(arguments: argparse.Namespace, output: Output) -> int:
    import yaml

    with connect(arguments.server) as client:
        found = client.get(f"{release_path(arguments.release)}/measured-envelope")
    envelope = {"envelope": found}
    if arguments.into:
        document = write_into(arguments.into, found)
        output.result(envelope, [f"{document}: {' and '.join(f'envelope.{name}' for name in found)} are as measured."])
        return exits.OK
    output.result(envelope, yaml.safe_dump(envelope, sort_keys=False, allow_unicode=True).splitlines())
    return exits.OK


def write_into(folder: Path, sections: Mapping[str, Any]) -> Path:
    """The folder's release.yaml with new sections of the envelope; its own other fields stay.

    Raises Mistake, and CommandError.
    """
    from registry.adapters.yaml_edit import fields_of, with_section

    document = folder / "release.yaml"
    text, stated = text_of(document), read_yaml(document)
    try:
        own = fields_of(stated, "envelope")
        for name, content in sections.items():
            whole = {**fields_of(own, name), **content} if isinstance(content, dict) else content
            text = with_section(text, name, whole)
    except ValueError as error:
        raise refuse(
            f"{document} cannot be written: {error}.", "Omit --into, and copy the printed sections."
        ) from error
    put_text(document, text)
    return document


def run_plan(arguments: argparse.Namespace, output: Output) -> int:
    asked = {name: getattr(arguments, name) for name in ("peak_per_s", *(option[1] for option in _OPTIONS))}
    body = {name: value for name, value in asked.items() if value is not None}
    replicas = f"{release_path(arguments.release)}/replicas"
    with connect(arguments.server) as client:
        plans = client.get(replicas)["results"] if arguments.apply else []
        # from before the plan, so that a later change by a person stays
        version = next((one["version"] for one in plans if one["environment"] == arguments.environment), 0)
        found = client.post(
            f"{release_path(arguments.release)}/capacity-plan", {**body, "prices_per_hour": prices(arguments.price)}
        )
        told = lines(found)
        if arguments.apply and found["replicas"] is not None:
            reason = arguments.reason or f"The plan for a peak of {arguments.peak_per_s:g} requests/s."
            wanted = {"environment": arguments.environment, "replicas": found["replicas"], "reason": reason}
            scaled = client.post(replicas, wanted, version=version)
            found = {**found, "applied": scaled}
            told.append(f"{scaled['environment']} is to have {scaled['wanted']} now; {scaled['answering']} answer.")
    output.result(found, told)
    return exits.OK if found["replicas"] is not None else exits.FAILED


def prices(given: list[str]) -> dict[str, float]:
    """{hardware: price per hour} of such as `NVIDIA L4=0.7`. Raises CommandError."""
    found = {}
    for one in given:
        hardware, _, price = one.rpartition("=")
        try:
            found[hardware] = float(price)
        except ValueError:
            hardware = ""
        if not hardware:
            raise refuse(f"{one!r} is no price.", "Write --price 'NVIDIA L4=0.7'.")
    return found


def lines(found: dict[str, Any]) -> list[str]:
    """A plan as the API gives it, for people."""
    basis, told = found["basis"], []
    if found["replicas"] is not None:
        told += [
            f"{found['load_per_s']:g} requests/s at the peak, with all that adds to it",
            f"{found['replicas']} replicas: {found['serving']} for the load, {found['replicas'] - found['serving']} may be lost",
            f"{found['in_rollout']} replicas while a rollout has another release beside them",
            f"{share_text(found['used_frac'])} used at the peak; {share_text(found['used_frac_after_loss'])} after that loss",
        ]
    if found["cost_per_hour"] is not None:
        told.append(f"{found['cost_per_hour']:g} an hour")
    if found["cost_per_100k"] is not None:
        told.append(f"{found['cost_per_100k']:g} per 100,000 requests")
    told += [f"unknown: {sentence}" for sentence in found["unknown"]]
    return [*told, _rests_on(basis)] if basis else told


def _rests_on(basis: dict[str, Any]) -> str:
    where = basis["hardware"] or "hardware that its node did not name"
    objective = f"{share_text(basis['slo_quantile'])} within {basis['slo_ms']:g} ms"
    return (
        f"Rests on at least {basis['per_s']:g} requests/s of one replica on {where} ({objective}): "
        f"the {basis['gate']} gate of report {short(basis['report'])}, {basis['measured_at']}"
    )
