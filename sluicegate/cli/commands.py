"""Every command, the module that holds it, and what its list says: `--help` needs no more than this."""

from __future__ import annotations

from typing import Final, NamedTuple


class Command(NamedTuple):
    """`module` is one of `sluicegate/cli/`; `help` is what its `add_to` says, as a test compares."""

    module: str
    help: str


COMMANDS: Final = {
    "up": Command("machine", "Run everything on this machine"),
    "demo": Command("machine", "Show it: five releases, live traffic, two automatic rollbacks"),
    "runtimes": Command("machine", "List the runtime images that nodes offer"),
    "login": Command("people", "Sign in and keep a token"),
    "team": Command("people", "Create teams (administrators)"),
    "user": Command("people", "Create users (administrators)"),
    "password": Command("people", "Change your password"),
    "token": Command("token", "Tokens for programs, with as little scope as they need"),
    "session": Command("browser_sessions", "Where you are signed in by a browser, and an end to it"),
    "issuer": Command("issuer", "Sign-in by an issuer, and its rules for people and CI jobs"),
    "environment": Command("environment", "Environments, and the rules for entering them"),
    "model": Command("model", "Create, list and show models"),
    "push": Command("push", "Send a release folder: release.yaml, artifact/… and tokenizer/…"),
    "check": Command("check", "Every mistake of a release folder at once, sending nothing"),
    "engine": Command("engine", "Build a TensorRT plan from ONNX and compare the two, on this machine"),
    "draft": Command("draft", "List and discard drafts of releases"),
    "release": Command("release", "List, show, compare, verify and fetch releases"),
    "keys": Command("release", "Show the public keys that verify releases and reports"),
    "waive": Command("release", "Let a release run its own code (release managers, never the author)"),
    "alias": Command("alias", "Name releases, such as champion"),
    "approvals": Command("approvals", "List what waits for an approval"),
    "registry": Command("collection", "Look after the registry's bytes"),
    "gates": Command("gates", "Run a release's gates"),
    "plan": Command("capacity", "Replicas and cost for a forecast, from what was measured"),
    "rollout": Command("rollout", "Start, watch and steer rollouts"),
    "rollback": Command("rollout", "Send a model's traffic back now"),
    "diagnose": Command("diagnose", "Explain a rollout"),
    "served": Command("served", "Tell what served a model at a time, at which weights, and why"),
    "sleep": Command("sleep", "Let models that nobody asks give their memory back, and wake them"),
    "webhook": Command("webhook", "Tell other systems and people what happens"),
    "node": Command("node", "List nodes, and keep new deployments off one"),
    "gateway": Command("gateway", "Gateways: set one up, drain it, take it off the list"),
    "audit": Command("audit", "Search and check the log of events"),
    "api": Command("api", "Call any operation of the REST API"),
    "completion": Command("completion", "Print a script that completes commands in your shell"),
    "ci-template": Command("ci_template", "Print a pipeline for GitHub or GitLab, of curl and jq"),
}
