"""`sluicegate model`: create, list, show, and golden sets."""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path
from typing import Any

from sluicegate.cli import exits, gates
from sluicegate.cli.environment import route_line
from sluicegate.cli.errors import refuse
from sluicegate.cli.output import Output, short
from sluicegate.cli.session import connect
from sluicegate.client import Client
from sluicegate.client.documents import read_yaml
from sluicegate.client.names import model_path


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verbs = commands.add_parser("model", help="Create, list and show models").add_subparsers(
        metavar="VERB", required=True
    )
    create_parser = verbs.add_parser(
        "create",
        help="Create a model from a YAML file",
        description="Sends a model: slug, team, contract, objectives, "
        "gate_policy and rollout_policy (examples/sentiment/model.yaml). With --golden its golden set is sent too.",
    )
    create_parser.add_argument("file", type=Path, metavar="FILE")
    create_parser.add_argument("--team", help="the owning team, when the file should not decide")
    create_parser.add_argument(
        "--golden", type=Path, metavar="JSONL", help="labelled examples, one JSON object per line"
    )
    create_parser.set_defaults(run=run_create)
    list_parser = verbs.add_parser("list", help="List models")
    list_parser.set_defaults(run=run_list)
    show_parser = verbs.add_parser("show", help="Show one model")
    show_parser.add_argument("model", metavar="MODEL")
    show_parser.set_defaults(run=run_show)
    golden_parser = verbs.add_parser(
        "golden",
        help="Add a golden set to a model, or show its detectable loss",
        description="Sends examples with their right answers, one JSON object per line: "
        '{"id", "inputs": {NAME: value}, "slice"} with "label", a class, or "expected": {OUTPUT: numbers or a text}. '
        "--check adds nothing: it shows mistakes by line, and the smallest share of lost rows that fails the golden gate in nine of ten "
        "runs, over all and on each slice.",
    )
    golden_parser.add_argument("model", metavar="MODEL")
    golden_parser.add_argument("file", type=Path, metavar="JSONL")
    golden_parser.add_argument(
        "--check", action="store_true", help="add nothing; show mistakes and the detectable loss"
    )
    golden_parser.set_defaults(run=run_golden)


def create(client: Client, document: dict[str, Any], golden: Path | None = None) -> dict[str, Any]:
    """The created model. Nothing is sent when the gate policy names another golden set than the given one."""
    wanted = document.get("gate_policy", {}).get("golden", {}).get("set", "")
    if golden is not None and wanted:
        digest = f"sha256:{hashlib.sha256(golden.read_bytes()).hexdigest()}"
        if digest != wanted:
            raise refuse(
                f"gate_policy.golden.set is {wanted}, and {golden} is {digest}.",
                "Write the file's digest into the policy.",
            )
    created: dict[str, Any] = client.post("/models", document)
    if golden is not None:
        add_golden_set(client, str(created["slug"]), golden)
    return created


def add_golden_set(client: Client, model: str, file: Path) -> dict[str, Any]:
    return _send_golden_set(client, model, file, "golden-sets")


def _send_golden_set(client: Client, model: str, file: Path, to: str) -> dict[str, Any]:
    if not file.is_file():
        raise refuse(f"{file} is not a file.", "Name a file of JSON lines {id, inputs, label or expected, slice}.")
    answer: dict[str, Any] = client.post_bytes(
        f"{model_path(model)}/{to}", file.read_bytes(), content_type="application/jsonl"
    )
    return answer


def run_create(arguments: argparse.Namespace, output: Output) -> int:
    document = read_yaml(arguments.file)
    if arguments.team:
        document["team"] = arguments.team
    with connect(arguments.server) as client:
        created = create(client, document, arguments.golden)
    output.result(
        created,
        [f"Model {created['slug']} is created, owned by team {created.get('team')}.", "Next: sluicegate push DIR"],
    )
    return exits.OK


def run_golden(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        if arguments.check:
            told = _send_golden_set(client, arguments.model, arguments.file, "golden-sets:check")
            output.result(told, proof_lines(told))
            return exits.OK
        added = add_golden_set(client, arguments.model, arguments.file)
    output.result(added, [f"{added['items']} examples, {added['digest']}"])
    return exits.OK


def proof_lines(told: dict[str, Any]) -> list[str]:
    """Detectable loss of a checked golden set, a line for all rows and a line for each slice."""
    within = "" if told["right_within"] is None else f", right within {told['right_within']:g}"
    parts = [("all", told["items"], told["caught"])]
    parts += [(f"slice {one['slice']}", one["items"], one["caught"]) for one in told["slices"]]
    return [
        f"{told['items']} examples of the kind {told['kind']}, compared by {told['compare']}{within}. Nothing was added.",
        f"Least share of lost rows that fails the gate in nine runs of ten, at {told['confidence']:.0%} confidence:",
        *(
            f"{name}  {items} rows  against stable {_share(found['against_stable'])}  "
            f"without one {_share(found['without_stable'])}"
            for name, items, found in parts
        ),
    ]


def _share(value: float | None) -> str:
    return "none" if value is None else f"{value:.1%}"


def run_list(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        models = list(client.pages("/models"))
    rows = ([m["slug"], m.get("team"), m.get("title")] for m in models)
    output.table(
        models, ("model", "team", "title"), rows, empty="There are no models yet: sluicegate model create FILE."
    )
    return exits.OK


def run_show(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        model = client.get(model_path(arguments.model))
        releases = [
            {**release, "gates": gates.newest_verdict(client, f"{release['model']}/{release['name']}")}
            for release in client.pages(f"{model_path(arguments.model)}/releases", limit=5)
        ]
        served = {
            where["slug"]: route
            for where in client.pages("/environments", limit=None)
            for route in where["routes"]
            if route["model"] == model["slug"]
        }
        alarms = list(client.pages("/alarms", live="true", model=model["slug"]))
    lines = [f"{model['slug']}  {model.get('title', '')}", f"team {model.get('team')}"]
    lines += [
        f"alarm {one['id']} in {one['environment']}, {one['tier']}, {one['state']}: {one['reason']}" for one in alarms
    ]
    for side in ("inputs", "outputs"):
        for tensor in model.get("contract", {}).get(side, []):
            lines.append(f"{side.removesuffix('s')} {tensor['name']} {tensor['data_type']} {tensor['dims']}")
    asked = model.get("gate_policy", {}).get("gates", [])
    lines.append(f"gates {', '.join(asked) or 'none'}")
    lines += [f"{where}: {route_line(route)}" for where, route in served.items()] or ["serves nowhere"]
    lines += [f"{r['name']}  {r.get('state')}  {short(r.get('digest'))}  gates {r['gates']}" for r in releases]
    output.result({**model, "serves": served, "newest_releases": releases, "alarms": alarms}, lines)
    return exits.OK
