"""How a service comes up: without what only the web process needs, since every restart after a crash pays for it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from django.conf import settings
from django.core.checks import run_checks

from sluicegate.stack.machine import _services

#: Starts each as `manage.py NAME` does, until it would begin its work, and says whether the pages are in memory then.
STARTED = """
import json, sys
from unittest import mock
import django
django.setup()
from django.core.management import get_commands, load_command_class
has_pages = {}
for name in sys.argv[1:]:
    command = load_command_class(get_commands()[name], name)
    with mock.patch.object(type(command), "handle", lambda *_, **__: None):
        command.run_from_argv(["manage.py", name])
    has_pages[name] = "sluicegate.urls" in sys.modules
from celery.fixups.django import DjangoWorkerFixup
from sluicegate.celery import app
DjangoWorkerFixup(app).validate_models()
has_pages["worker"] = "sluicegate.urls" in sys.modules
print(json.dumps(has_pages))
"""


def test_a_service_comes_up_without_the_pages(tmp_path: Path) -> None:
    services = _services(tmp_path, tmp_path, defaultdict(int), {})
    managed = [one.argv[2] for one in services if one.argv[1].endswith("manage.py")]
    argv = [sys.executable, "-c", STARTED, *managed]
    done = subprocess.run(argv, cwd=settings.BASE_DIR, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    has_pages = json.loads(done.stdout)
    assert {"agent", "control_plane", "engine", "run_prober", "scheduler", "worker"} == has_pages.keys()
    assert not any(has_pages.values()), has_pages


def test_the_system_checks_which_no_service_asks_find_nothing() -> None:
    assert run_checks() == []
