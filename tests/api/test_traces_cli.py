"""`sluicegate model trace` and `traces`: how recorded arrivals come to a model, and go."""

# ruff: noqa: F811 - fixtures are named as they are used

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.db.models import F

from registry.models import ServedModel
from sluicegate.cli import exits
from sluicegate.cli.main import main
from sluicegate.client import Client
from tests.api.cli_world import Run, model_file, run, tokens  # noqa: F401  # fixtures
from validators.models import Trace
from validators.queries.traces import trace_gaps

pytestmark = [pytest.mark.django_db, pytest.mark.slow]


def test_a_trace_becomes_the_load_of_the_gate_policy(run: Run, tmp_path: Path) -> None:
    run("ada", "model", "create", str(model_file(tmp_path)))
    model = ServedModel.objects.get()
    ServedModel.objects.update(gate_policy={"load": {"rate_per_s": 7}, "gates": ["load"]})
    file = tmp_path / "trace.csv"
    file.write_text("TIMESTAMP\n2023-11-16 18:17:03\n2023-11-16 18:17:05\n2023-11-16 18:17:04\n")
    assert run("ada", "model", "trace", "sentiment", str(file))[0] == exits.REFUSED
    assert run("ada", "model", "trace", "sentiment", str(tmp_path / "none"))[0] == exits.REFUSED
    file.write_text("TIMESTAMP\n2023-11-16 18:17:03\n2023-11-16 18:17:05\n2023-11-16 18:17:05.5\n")
    code, changed = run("ada", "model", "trace", "sentiment", str(file))
    model.refresh_from_db()
    assert (code, changed["gate_policy"]) == (exits.OK, model.gate_policy)
    added = Trace.objects.get()
    assert model.gate_policy == {"load": {"rate_per_s": 7, "trace": added.digest}, "gates": ["load"]}
    assert list(trace_gaps(model, added.digest)) == [2.0, 0.5]


def test_traces_are_listed_and_removed_unless_they_are_named(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("ada", "model", "create", str(model_file(tmp_path)))
    ServedModel.objects.update(gate_policy={"gates": ["load"]})
    assert run("ada", "model", "traces", "sentiment") == (exits.OK, [])
    assert main(["model", "traces", "sentiment"]) == exits.OK
    assert "sentiment has no traces." in capsys.readouterr().out
    digests = []
    for seconds in ("0\n1\n3\n", "0\n1200\n"):
        (tmp_path / "trace").write_text(seconds)
        code, changed = run("ada", "model", "trace", "sentiment", str(tmp_path / "trace"))
        assert code == exits.OK
        digests.append(changed["gate_policy"]["load"]["trace"])
    code, found = run("ada", "model", "traces", "sentiment")
    assert (code, {one["digest"]: one["gaps"] for one in found}) == (exits.OK, {digests[0]: 2, digests[1]: 1})
    assert main(["model", "traces", "sentiment"]) == exits.OK
    printed = capsys.readouterr().out
    assert all(digest in printed for digest in digests) and "longest gap" in printed and "1200 s" in printed
    code, refused = run("ada", "model", "traces", "sentiment", "--remove", digests[1])
    assert (code, refused["code"]) == (exits.REFUSED, "trace_used")
    assert run("mara", "model", "traces", "sentiment", "--remove", digests[0])[0] == exits.REFUSED
    for odd in ("../kept-requests", ".."):
        assert run("ada", "model", "traces", "sentiment", "--remove", odd)[0] == exits.REFUSED
    assert {one.digest for one in Trace.objects.all()} == set(digests)
    code, done = run("ada", "model", "traces", "sentiment", "--remove", digests[0])
    assert (code, done) == (exits.OK, {"digest": digests[0], "removed": True})
    assert [one.digest for one in Trace.objects.all()] == [digests[1]]
    code, refused = run("ada", "model", "traces", "sentiment", "--remove", digests[0])
    assert (code, refused["code"]) == (exits.REFUSED, "no_such_trace")


def test_a_trace_is_not_written_over_what_somebody_changed_meanwhile(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("ada", "model", "create", str(model_file(tmp_path)))
    get = Client.get

    def before_another(client: Client, path: str) -> Any:
        found = get(client, path)
        if not ServedModel.objects.filter(gate_policy={"gates": ["load"]}).exists():
            ServedModel.objects.update(gate_policy={"gates": ["load"]}, version=F("version") + 1)
        return found

    monkeypatch.setattr(Client, "get", before_another)
    (tmp_path / "trace").write_text("1\n2\n")
    code, told = run("ada", "model", "trace", "sentiment", str(tmp_path / "trace"))
    assert code != exits.OK and ServedModel.objects.get().gate_policy == {"gates": ["load"]}, told
