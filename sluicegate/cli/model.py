"""`sluicegate model`: create, list, show, golden sets, the requests that are kept for them, and traces."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sluicegate.cli import exits, gates
from sluicegate.cli.environment import route_line
from sluicegate.cli.errors import refuse
from sluicegate.cli.output import Output, short
from sluicegate.cli.session import connect
from sluicegate.client import Client
from sluicegate.client.documents import read_yaml, text_of
from sluicegate.client.names import model_path
from validators.core.trace import MOST_GAPS, gaps_of, instants_of

TRACE_COLUMNS = ("digest", "gaps", "lasts", "rate", "longest gap", "cv", "arrivals")


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
    tenants_parser = verbs.add_parser(
        "tenants", help="Show what each tenant and class of a model sends, and what of it is shed"
    )
    tenants_parser.add_argument("model", metavar="MODEL")
    tenants_parser.add_argument("--environment", default="production", metavar="ENVIRONMENT", help="(production)")
    tenants_parser.set_defaults(run=run_tenants)
    golden_parser = verbs.add_parser(
        "golden",
        help="Add a golden set to a model, or tell what it can prove",
        description="Sends examples with what is right, one JSON object per line: "
        '{"id", "inputs": {NAME: value}, "slice"} with "label", a class, or "expected": {OUTPUT: numbers or a text}. '
        "--check adds nothing: it names mistakes by line and tells, before anything is asked of a release, the least share of "
        "rows that fails the golden gate in nine runs of ten once a release loses them, over all and on each slice.",
    )
    golden_parser.add_argument("model", metavar="MODEL")
    golden_parser.add_argument("file", type=Path, metavar="JSONL")
    golden_parser.add_argument("--check", action="store_true", help="add nothing; tell mistakes, and what it can prove")
    golden_parser.set_defaults(run=run_golden)
    kept_parser = verbs.add_parser(
        "kept",
        help="Tell how many mirrored requests are kept of a model, draft a golden set from them, or delete them",
        description="What may be kept stands under kept_requests in the model's gate policy. A draft expects what the stable "
        "release answered; look at it, then add it with `sluicegate model golden MODEL FILE`.",
    )
    kept_parser.add_argument("model", metavar="MODEL")
    what = kept_parser.add_mutually_exclusive_group()
    what.add_argument("--draft", type=Path, metavar="JSONL", help="write the golden set that they make to this file")
    what.add_argument("--forget", action="store_true", help="delete all of them")
    kept_parser.set_defaults(run=run_kept)
    _add_traces(verbs)


def _add_traces(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    trace_parser = verbs.add_parser(
        "trace",
        help="Have the load gate send requests as they once came",
        description="Adds a recording to the model's traces and names it in the gate policy, as load.trace: CSV with a column "
        f"TIMESTAMP, or a line each of seconds, of an ISO 8601 instant or of JSON with a timestamp; {MOST_GAPS:,} gaps at most. "
        "Nothing but the gaps leaves this machine.",
    )
    trace_parser.add_argument("model", metavar="MODEL")
    trace_parser.add_argument("file", type=Path, metavar="FILE")
    trace_parser.set_defaults(run=run_trace)
    traces_parser = verbs.add_parser(
        "traces",
        help="List the traces of a model, or remove one",
        description="Tells what the arrivals of each are like. What the gate policy or any gate run names is not removed: it is evidence.",
    )
    traces_parser.add_argument("model", metavar="MODEL")
    traces_parser.add_argument("--remove", metavar="DIGEST", help="remove this one")
    traces_parser.set_defaults(run=run_traces)


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


def run_kept(arguments: argparse.Namespace, output: Output) -> int:
    path = f"{model_path(arguments.model)}/kept-requests"
    with connect(arguments.server) as client:
        told = client.get(path)
        if arguments.draft is not None:
            told = client.post(f"{path}:draft")
            _write(arguments.draft, told["lines"])
        elif arguments.forget:
            client.delete(path)
    if arguments.draft is not None:
        left = [f"{count} left out: {why}" for why, count in told["left_out"].items()]
        proof = proof_lines(told["proves"]) if told["proves"] else []
        said = f"{arguments.draft}: {told['items']} requests, expecting what {told['baseline']} answered."
        output.result(told, [said, *left, *proof])
    elif arguments.forget:
        output.result(told, [f"{told['requests']} requests were deleted."])
    else:
        allowed = (
            "none may be kept" if told["most"] is None else f"{told['most']} may be, for {told['max_age_days']:g} days"
        )
        output.result(told, [f"{told['requests']} requests are kept ({told['size_bytes']} bytes); {allowed}."])
    return exits.OK


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise refuse(f"{file} cannot be written: {error.strerror}.", "Name another file.") from error


def run_trace(arguments: argparse.Namespace, output: Output) -> int:
    try:
        gaps = gaps_of(text_of(arguments.file))
    except ValueError as error:
        raise refuse(f"{arguments.file} is no trace: {error}.", "See sluicegate model trace --help.") from error
    path = model_path(arguments.model)
    with connect(arguments.server) as client:
        added = client.post_bytes(f"{path}/traces", instants_of(gaps), content_type="text/plain")
        read = client.get(path)
        policy = read.get("gate_policy") or {}
        own = {**policy, "load": {**(policy.get("load") or {}), "trace": added["digest"]}}
        done = client.patch(path, {"gate_policy": own}, version=read["version"])
    output.result(
        done, [f"The load gate of {done['slug']} sends requests at {len(gaps)} recorded gaps, {added['digest']}."]
    )
    return exits.OK


def run_traces(arguments: argparse.Namespace, output: Output) -> int:
    path = f"{model_path(arguments.model)}/traces"
    with connect(arguments.server) as client:
        if arguments.remove is not None:
            client.delete(f"{path}/{quote(arguments.remove, safe=':').replace('.', '%2E')}")
            done = {"digest": arguments.remove, "removed": True}
            output.result(done, [f"The trace {arguments.remove} is removed from {arguments.model}."])
            return exits.OK
        found = list(client.pages(path))
    empty = f"{arguments.model} has no traces. Add one: sluicegate model trace {arguments.model} FILE."
    output.table(found, TRACE_COLUMNS, map(_trace_row, found), empty=empty)
    return exits.OK


def _trace_row(trace: dict[str, Any]) -> list[str]:
    shape = trace["shape"]
    return [
        trace["digest"], f"{trace['gaps']:,}", f"{trace['lasts_s']:g} s", f"{shape['rate_per_s']:g}/s",
        f"{shape['longest_gap_s']:g} s", f"{shape['cv']:g}", shape["words"],
    ]  # fmt: skip


def proof_lines(told: dict[str, Any]) -> list[str]:
    """What a checked golden set can prove, a line for all of it and one for each slice."""
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


def run_tenants(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        found = client.get(f"/environments/{arguments.environment}{model_path(arguments.model)}/tenants")
    for one in found["warnings"]:
        output.say(f"{one['code']}: {one['message']}")
    rates = ("quota", "requests", "over_quota", "shed", "errors")
    if found["classes"] and not output.as_json:
        shown = rates[1:2] + rates[3:]
        classes = (
            [one["name"], "–" if one["share_pct"] is None else f"{one['share_pct']} %", *_traffic(one, shown)]
            for one in found["classes"]
        )
        output.table(found, ("class", "share", *shown, "p50", "p99"), classes, empty="")
    rows = ([one["tenant"], *_traffic(one, rates)] for one in found["tenants"])
    output.table(
        found,
        ("tenant", *rates, "p50", "p99"),
        rows,
        empty=f"The traffic policy of {arguments.model} names no tenants.",
    )
    return exits.OK


def _traffic(one: dict[str, Any], rates: Sequence[str]) -> list[str]:
    """Rates a second and how long answers took, as a table shows them."""
    return [
        *("–" if (rate := one[f"{name}_per_s"]) is None else f"{rate:g}/s" for name in rates),
        *("–" if (took := one[f"{name}_ms"]) is None else f"≤ {took:g} ms" for name in ("p50", "p99")),
    ]


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
    lines = [f"{model['slug']}  {model.get('title', '')}", f"team {model.get('team')}"]
    for side in ("inputs", "outputs"):
        for tensor in model.get("contract", {}).get(side, []):
            lines.append(f"{side.removesuffix('s')} {tensor['name']} {tensor['data_type']} {tensor['dims']}")
    asked = model.get("gate_policy", {}).get("gates", [])
    lines.append(f"gates {', '.join(asked) or 'none'}")
    lines += [f"{where}: {route_line(route)}" for where, route in served.items()] or ["serves nowhere"]
    lines += [f"{r['name']}  {r.get('state')}  {short(r.get('digest'))}  gates {r['gates']}" for r in releases]
    output.result({**model, "serves": served, "newest_releases": releases}, lines)
    return exits.OK
