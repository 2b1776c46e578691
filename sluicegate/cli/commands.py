"""Every command, its module, and its line in the list: `--help` needs no more than this."""

from __future__ import annotations

from typing import Final, NamedTuple


class Command(NamedTuple):
    """`module` is in `sluicegate/cli/`; `help` repeats the help in its `add_to`, as a test compares."""

    module: str
    help: str


COMMANDS: Final = {
    "up": Command("machine", "Run everything on this machine"),
    "demo": Command("machine", "Show it: five releases, live traffic, two automatic rollbacks"),
    "runtimes": Command("machine", "List the runtime images that nodes offer"),
    "login": Command("login", "Sign in and keep a token"),
    "token": Command("token", "Tokens for programs, with as little scope as they need"),
    "environment": Command("environment", "List and show environments: what serves there, and the rules for entering"),
    "model": Command("model", "Create, list and show models"),
    "push": Command("push", "Send a release folder: release.yaml, artifact/… and tokenizer/…"),
    "check": Command("check", "Every mistake of a release folder at once, sending nothing"),
    "engine": Command("engine", "Build a TensorRT plan from ONNX, on this machine"),
    "release": Command("release", "List, show, compare, verify and fetch releases"),
    "keys": Command("release", "Show the public keys that verify releases and reports"),
    "waive": Command("release", "Let a release run its own code (release managers, never the author)"),
    "approvals": Command("approvals", "List what waits for an approval"),
    "gates": Command("gates", "Run a release's gates"),
    "plan": Command("capacity", "Replicas and cost for a forecast, from measurements"),
    "rollout": Command("rollout", "Start, watch and steer rollouts"),
    "rollback": Command("rollout", "Send a model's traffic back now"),
    "diagnose": Command("diagnose", "Explain a model's traffic, or a rollout"),
    "judge": Command("judge", "Judge counters of a candidate against those of stable"),
    "webhook": Command("webhook", "Tell other systems and people what happens"),
    "audit": Command("audit", "Check the log of events"),
    "api": Command("api", "Call any operation of the REST API"),
    "ci-template": Command("ci_template", "Print a pipeline for GitHub or GitLab, of curl and jq"),
}
