"""Sentences that the code writes into events, found in its source, and the fact that each rests on.

A sentence is the literal text of a `reason`, with `{}` in the place of each value. The code that decides on rollouts is pure and
has its sentences tested one by one; here are those of the actions and processes, which write events.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
#: Where events are written.
FOLDERS = (
    *("accounts/actions", "audit", "ledger/actions", "notifications/actions", "registry/actions"),
    *("rollouts/actions", "rollouts/engine", "rollouts/prober", "rollouts/watch"),
    *("serving/environments/actions", "serving/targets/actions", "serving/traffic/actions", "serving/targets/agent"),
    *("validators/actions", "validators/execution"),
)
#: Names of arguments and variables that become an event's reason.
NAMES = {"because", "ended", "reason", "said", "trouble", "wait", "why"}
#: Functions that return a reason, and functions that take one by its place.
RETURNED_BY = {"_examine", "_no_objective", "_why_closed", "_why_worse"}
BY_PLACE = {"_end_servers", "_give_up", "_lose", "_loudly", "_move", "_setback", "move", "note_stuck"}
#: They word a preview or a check, and write no event.
NO_EVENTS = (
    "rollouts/actions/preview.py",
    "serving/targets/agent/static_launcher.py",
    "serving/targets/agent/containment.py",
)
#: They are shown while something waits, or join others, and no event has them as its reason.
SHOWN = {
    " ({})",
    ": {}",
    "{}, the rollback target, sleeps, and is given a server first. {}",
    "Its servers stay until every gateway answers for it: {} has not taken that yet.",
    "Its servers stay until nothing is in flight on them: {}.",
    "{} not heard of lately.",
    "its envelope declares no more",
    "more are never placed",
    "The gate policy speaks of {}, and there is no such environment.",
    "the release declares max_batch_size {}",
    "The new policy of {} asks for less than the present one: {}.",
    "{} has no serving server yet. All traffic goes back to it once it answers again.",
    "{} does not run what was sealed, so it takes no traffic. Push the release again.",
    "{} has no server that answers yet, so it can take no traffic: {}",
}

PERSON = "a person asked for it, and the action checked that person's right"
STATE = "the row's state, read under its lock in this transaction"
#: sentence → what the code checked before it writes it
RESTS_ON = {
    # accounts, the registry, the log, webhooks
    "recovered on the command line": PERSON,
    "The hashes of events 1 to {} match their contents.": "the whole chain was read and hashed anew",
    "discarded": PERSON,
    "abandoned for more than {}": "the draft's last change is older than this",
    "the same as {}": "the digests of both manifests are equal",
    "{} confirmed event {} ({}) in none of {} attempts: {}": "each attempt ended without a 2xx; a late answer may have arrived",
    "Turned off, because {} answered 410: it wants nothing more.": "status 410 of the last attempt (RFC 9110: Gone)",
    # the watch
    "{} looks after it: {}": PERSON,
    "Closed by {}: {}": PERSON,
    "Muted by {}: {}": PERSON,
    "Unmuted by {}: {}": PERSON,
    "The time of the mute is over.": "its time, by the database's clock",
    "{} of {} {} of {} in the last {} min. The objective allows {}; this is {} times that, since {} UTC.": "counts of each gateway",
    "{} is within the objective again: {}.": "the closing test of the counts since the alarm opened; the counts of the last minutes",
    "{} of {} is no objective in {} any more.": "the model has no route there, or its policy names no such guard",
    "{} is worse than its control {}: {} of {} {} against {} of {}.": "counts of both in the same bins, since the control has this share",
    "{} Both get half, to compare them.": "the same, with the evidence over its bar while an alarm is open",
    "Under equal load neither release is proven to be worse.": "the look lasted its time, and no evidence of it reached the bar",
    "{} keeps {} % as the control of {}.": "the promotion's policy; the route is written in the same transaction",
    "{} is the control of {} no longer.": "the route without it is written in the same transaction",
    # the undo window
    "{} stays warm, because {}: {}.": "the standing of each objective, and its counts since the promotion",
    "an objective burns": "an alarm is open",
    "not every objective is proven to be met yet": "the evidence of the counts since the promotion, below its bar",
    "{} serves no more, so nothing goes back from it to {}.": "the route's stable release is another one",
    "Rollout {} has begun and goes back to {}, so {} is not kept warm any more.": "that rollout's row, under the routes' lock",
    "{} has met each objective since its promotion: {}.": "the evidence of each objective, over its bar",
    "The longest time for the undo window is over. Whether {} meets its objectives was not judged: {}.": "the clock",
    "The undo window's time is over. Its policy asks for no evidence, so nothing checked how {} served.": "the clock; `undo_max_s` is 0",
    # rollouts: people
    "{} approved by {}, {} of {}{}.": PERSON,
    "{} Getting {} loaded and warm.": "the approvals are complete; the engine asks for the candidate next",
    "{} It takes {} more.": "the approvals counted under the rollout's lock",
    "{} asked for {} in {}, {}.": PERSON,
    "{} waits for {} other than its author and {}.": "the approvals that the policy asks for",
    "Getting {} loaded and warm.": "no approval is needed; the engine asks for the candidate next",
    "{} takes the place of {}, by {}: {}": PERSON,
    "Advanced to {} % by {} without waiting for proof: {}": PERSON,
    "{} promotes {} without waiting for proof: {}": PERSON,
    "Cancelled by {} before any traffic: {}": "the state is one in which no route names the candidate",
    "Rolling back to {}, by {}: {}": PERSON,
    "Ended by {}: {} {}": "the rollout has no stable release, or the server of the release before is not ready",
    " {} has no serving server, so requests fail until it has one.": "the servers of stable, as the route has them",
    "{} has no serving server. By {}, {} {}": PERSON,
    "The freeze until {} was passed. {}": "a freeze window of the plan holds at this time, and the action does not refuse it",
    "Paused by {} at {} %: {}": PERSON,
    "Resumed by {} at {} %: {}": PERSON,
    "{} begins look {} of {} now: {}": "every gateway has acknowledged weight 0 since the crossing",
    "{} Before that: {}": "the records of the rollout's crossings, each written in the transaction that took its traffic away",
    "{} went back to {}, {}: {}": "a server of the former release is ready",
    "{} is taken out of use.": PERSON,
    "{} is in use again.": PERSON,
    # rollouts: the engine
    "Rollout {} prepares it.": STATE,
    "Rollout {} goes to {} next, if that is proven.": "the policy's next step",
    "Rollout {}: it fails, unlike the other replicas.": "the test for an odd replica, on this tick's counters",
    "Rollout {}: it fails, unlike the other replicas, and the candidate is compared with it.": "as above, for stable",
    "{} was promoted over it.": "the move to promoted is in this transaction, after every gateway acknowledged the route",
    "Rollout {} has ended, so requests may force a release again.": "the state that it moves to is final",
    "Rollout {} lacks evidence of time, because requests forced a release.": "300 readings of a stage, and most of it, had one",
    "{}. Traffic may still reach {}; look at the gateways.": "no acknowledgement within the policy's deadline, or counters grow",
    "Every gateway has acknowledged weight 0.": "the acknowledged generation of every gateway of the environment",
    "The counters show no request for {} at weight 0.": "two readings of every gateway since weight 0",
    "Every gateway has acknowledged weight 0; the counters cannot confirm it for {}.": "acknowledged; no reading in time",
    "The counters still show requests for {} at weight 0": "the counter of requests that the split drew since weight 0",
    "The gateways have not acknowledged weight 0 for {} s{}": "the clock, and the acknowledged generations",
    "{} Every gateway has acknowledged weight 0, {}.": "as above; the rest names whether the counters confirm it",
    "{} leaves the route, as its rollback has ended.": STATE,
    "{} stays loaded: {}": "the error of the action that was to drain it",
    # serving
    "{} asked for another in its place.": PERSON,
    "{} answers {} s after it was asked for.": "a server of the release is ready",
    "It makes room for {} {} in {}: nobody asked it for {} s, and no other that may yield was asked longer ago.": (
        "the counters of every gateway, for the first of those that make room"
    ),
    # the node agent
    "The node's agent cannot look at it: {}. It stays as it is, and is looked at again.": "the error of the operating system",
    "its server was gone when the agent came back, or not shut in as servers are today": "no such process, or an older sandbox",
    "its server process ended": "the process is gone",
    "its server is away, or serves it no more": "the server's own answer",
    "it hung: {} ({})": "liveness calls, probes and the server's counters, for the time that the sentence names",
    "it hung: {}": "liveness calls, probes and the server's counters, for the time that the sentence names",
    "its files are here and right": "the sha256 of every file, before the server was started",
    "the server reports it ready": "the server's readiness of this model",
    "it answered its warm-up requests": "each answer had the declared outputs",
    "{}: {} It is tried again ({} tries so far).": "the error of the last try",
    "{}: {}{}": "the error of the last try, and how many there were",
    "{}: {}": "an error's code and message",
    "It broke or did not start {} times in a row. The last time: {}": "setbacks since it was last healthy",
    "it once served, so it is tried again": "`ready_at` is set",
    "it is not wanted any more": "`is_wanted` is false",
    "{}{}": "a reason that was given, and what was in vain",
    # validators
    "cancelled": PERSON,
    "its gates run": STATE,
    "The gates could not be run to their end: {}": "the error with which the job failed for good",
    "gate run {} is over": "the gate run is finished, cancelled or given up",
    "for gate run {}": "the gate run is running",
}


def sentences() -> dict[str, str]:
    """Sentence → the place that writes it (`file:line`)."""
    return {
        text: place for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")) for text, place in _in(path)
    }


def _in(path: Path) -> Iterator[tuple[str, str]]:
    name = str(path.relative_to(ROOT))
    if "/core/" in name or name in NO_EVENTS:
        return
    for node in ast.walk(ast.parse(path.read_text())):
        for value in _reasons(node):
            for text in _texts(value):
                if (" " in text or text in RESTS_ON) and text not in SHOWN:
                    yield text, f"{name}:{value.lineno}"


def _reasons(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.Call):
        yield from (one.value for one in node.keywords if one.arg in NAMES)
        if _called(node) in BY_PLACE:
            yield from node.args
    elif isinstance(node, ast.FunctionDef):
        arguments = [*zip(reversed(node.args.args), reversed(node.args.defaults), strict=False)]
        arguments += [
            (one, value) for one, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if value
        ]
        yield from (value for one, value in arguments if one.arg in NAMES)
        if node.name in RETURNED_BY:
            yield from (one.value for one in ast.walk(node) if isinstance(one, ast.Return) and one.value)
    elif isinstance(node, ast.Assign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(one, ast.Name) and one.id in NAMES for one in targets):
            yield node.value


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def _texts(value: ast.expr) -> Iterator[str]:
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        yield value.value
    elif isinstance(value, ast.JoinedStr):
        yield "".join(str(one.value) if isinstance(one, ast.Constant) else "{}" for one in value.values)
    elif isinstance(value, ast.IfExp):
        yield from (text for one in (value.body, value.orelse) for text in _texts(one))
    elif isinstance(value, ast.BoolOp):
        yield from (text for one in value.values for text in _texts(one))
