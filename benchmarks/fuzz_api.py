"""Generated requests against the whole API: does any of them end in a 500, or in an answer that the schema does not tell of?

    python -m benchmarks.fuzz_api [--examples 40] [--seed 1]

A PostgreSQL, a Valkey and a web process of its own, on this machine. schemathesis, in an environment of its own
(`.build/fuzz`, from benchmarks/fuzz.lock), makes requests from docs/openapi.json: its coverage phase walks through the edges
of every parameter and body, its fuzzing phase draws `--examples` for each operation, and the stateful one goes from answer to
answer. Twice: as an administrator for things that are there, and as a CI robot for whatever is drawn. Left out: the
operation that sends a webhook's test, for its target would be an address of somebody else; no worker runs, so no other does.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FUZZ, UV = ROOT / ".build" / "fuzz", ROOT / ".build" / "installer" / "bin" / "uv"
LOCK = ROOT / "benchmarks" / "fuzz.lock"
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
LEFT_OUT = r"/webhooks/\{webhook_id\}/test$"
#: What is claimed: so many without a 500.
LEAST_CASES = 10_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=40, help="drawn for each operation, beside its edges")
    parser.add_argument("--seed", type=int, default=1)
    said = parser.parse_args()
    install()
    total, broken, differs = 0, 0, False
    with _installation() as (folder, installation, callers):
        shutil.copy(ROOT / "docs" / "openapi.json", folder)  # what is committed meanwhile is not what runs
        for name, (token, known) in callers.items():
            config = folder / f"{name}.toml"
            config.write_text(config_text(known))
            before = len(installation.requests())
            cases, log = run(installation.url, token, config, folder, said.examples, said.seed)
            answers = Counter(status // 100 for *_, status in installation.requests()[before:])
            shown = ", ".join(f"{count} × {status}xx" for status, count in sorted(answers.items()))
            print(f"{name}: {cases} cases; {shown}", flush=True)
            if "FAILURES" in log:
                print(log[log.find("FAILURES") :][:20_000])
            differs, total, broken = differs or "FAILURES" in log, total + cases, broken + answers[5]
    print(f"{total} cases in all, {broken} answers of 5xx")
    return 1 if differs or broken or total < LEAST_CASES else 0


def install() -> None:
    """schemathesis as it is locked; a second time nothing."""
    if not FUZZ.exists():
        subprocess.run([UV, "venv", "-q", "--python", sys.executable, FUZZ], check=True)
    python = FUZZ / "bin" / "python"
    subprocess.run([UV, "pip", "sync", "-q", "--python", python, "--require-hashes", LOCK], check=True)


def config_text(known: dict[str, dict[str, Any]]) -> str:
    """schemathesis.toml with the parts of addresses that name what is there; by operation."""
    blocks = []
    for pattern, parameters in known.items():
        named = ", ".join(f"{json.dumps(f'path.{key}')} = {json.dumps(value)}" for key, value in parameters.items())
        blocks.append(f"[[operations]]\ninclude-path-regex = {json.dumps(pattern)}\nparameters = {{ {named} }}\n")
    return "\n".join(blocks)


def run(url: str, token: str, config: Path, folder: Path, examples: int, seed: int) -> tuple[int, str]:
    """(cases, what it printed)."""
    argv = [
        FUZZ / "bin" / "schemathesis", "--config-file", config, "--no-color", "run", "openapi.json",
        "--url", url, "--header", f"Authorization: Bearer {token}", "--checks", CHECKS, "--exclude-path-regex", LEFT_OUT,
        "--max-examples", str(examples), "--seed", str(seed), "--suppress-health-check", "all", "--max-redirects", "0",
        "--workers", "2", "--continue-on-failure", "--no-shrink", "--generation-database", "none", "--warnings", "off",
        "--request-timeout", "30",
    ]  # fmt: skip
    done = subprocess.run([str(word) for word in argv], capture_output=True, text=True, check=False, cwd=folder)
    log = done.stdout + done.stderr
    cases = re.search(r"([\d,]+) generated", log)
    if cases is None:
        raise RuntimeError(f"schemathesis did not come to its end:\n{log[-3000:]}")
    return int(cases[1].replace(",", "")), log


@contextlib.contextmanager
def _installation() -> Iterator[tuple[Path, Any, dict[str, tuple[str, dict[str, dict[str, Any]]]]]]:
    """(a folder, the web process, caller → (token, known parts of addresses))."""
    folder = Path(tempfile.mkdtemp(prefix="sluicegate-fuzz-"))
    ending: list[Callable[[], Any]] = [lambda: shutil.rmtree(folder, ignore_errors=True)]
    from sluicegate.stack.postgres import Postgres
    from sluicegate.stack.valkey import Valkey

    postgres, valkey = Postgres(folder, is_durable=False), Valkey(folder)
    (folder / "static").mkdir()
    try:
        ending.append(postgres.remove)
        # the web process has no more than the service's role, as in use
        os.environ.update(DATABASE_URL=postgres.start(), SLUICEGATE_STATE_DIR=str(folder))
        os.environ.update(DATABASE_OWNER_URL=postgres.owner_url)
        ending.append(valkey.stop)
        os.environ.update(REDIS_URL=valkey.start(), DJANGO_SETTINGS_MODULE="sluicegate.settings")
        os.environ.update(SLUICEGATE_LOG_LEVEL="ERROR", SLUICEGATE_BLOB_STORE=str(folder / "blobs"))
        import django

        django.setup()
        from django.core.management import call_command

        from tests.support.rigs.upload_rig import Installation

        call_command("migrate", interactive=False, verbosity=0)
        callers = _people_and_things()
        installation = Installation(folder, {})
        ending.append(installation.stop)
        installation.start_web()
        yield folder, installation, callers
    finally:
        for end in reversed(ending):
            end()


def _people_and_things() -> dict[str, tuple[str, dict[str, dict[str, Any]]]]:
    from django.conf import settings
    from django.db import transaction
    from django.test import Client

    from accounts.actions import actor_for, issue_token
    from accounts.core.access import Role
    from tests.api.route_world import MODEL, OURS, world
    from tests.support.worlds.factories import make_user

    settings.ALLOWED_HOSTS, settings.WEBHOOKS_ALLOW_PRIVATE = ["*"], True
    admin, robot = make_user("fuzz-admin", is_admin=True), make_user("fuzz-robot", team=OURS, role=Role.CI)
    tokens = [issue_token(user=user, name="fuzz", actor=actor_for(user)) for user in (admin, robot)]
    with transaction.atomic():
        made = world(Client(headers={"Authorization": f"Bearer {tokens[0]}"}))
    known = {
        r"/environments/\{slug\}": {"slug": made.environment.slug, "model": MODEL},
        r"/models/\{slug\}/releases/\{name\}": {
            "slug": MODEL,
            "name": made.release.name,
            "path": "artifact/model.onnx",
        },
        r"/models/\{slug\}/aliases": {"slug": MODEL, "name": "champion"},
        r"/models/\{slug\}(/(releases|golden-sets|rollback))?$": {"slug": MODEL},
        r"/releases/\{release_id\}": {"release_id": str(made.draft.pk)},
        r"/rollouts/\{rollout_id\}": {"rollout_id": made.rollout.pk},
        r"/gate-runs/\{id\}": {"id": made.gate_run.pk},
        r"/reports/\{digest\}": {"digest": made.report.digest},
        r"/teams/\{slug\}": {"slug": OURS},
        r"/users/\{username\}": {"username": "target"},
        r"/uploads/\{upload_id\}": {"upload_id": made.upload_id},
        r"/webhooks/\{webhook_id\}/deliveries/": {"webhook_id": made.webhook.pk, "delivery_id": str(made.delivery.pk)},
        r"/webhooks/\{webhook_id\}($|/(deliveries|replay|rotate)$)": {"webhook_id": made.webhook.pk},
    }
    return {"administrator": (tokens[0], known), "ci": (tokens[1], {})}


if __name__ == "__main__":
    raise SystemExit(main())
