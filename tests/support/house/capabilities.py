"""Evidence for the table of capabilities: the tests on real parts that passed, and the steps of the GPU proof.

A test names the capability that it shows: `@pytest.mark.shows("server:triton")`, beside the `real` mark of the capability's part.
`make capabilities` runs these tests, keeps the outcome in `registry/adapters/capabilities.json` and writes the tables of
README.md and docs/capabilities.md. `python -m tests.support.house.capabilities` writes the tables alone.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from registry.core.capabilities import BY_ID, KINDS, MEANINGS, State, table

ROOT = Path(__file__).resolve().parents[3]
EVIDENCE = ROOT / "registry" / "adapters" / "capabilities.json"
GPU_REPORT = ROOT / "docs" / "lab" / "gpu-proof.json"
BEGIN, END = "<!-- capabilities:begin -->", "<!-- capabilities:end -->"
Evidence = dict[str, Any]


def claims_of(item: pytest.Item) -> list[str]:
    """Ids of the capabilities that a test shows. Raises UsageError for an unknown id, and if the part may be a fake."""
    claims = sorted({name for mark in item.iter_markers("shows") for name in mark.args})
    real = {part for mark in item.iter_markers("real") for part in mark.args}
    for name in claims:
        if name not in BY_ID:
            raise pytest.UsageError(f"{item.nodeid} shows {name!r}, which registry/core/capabilities.py does not list.")
        if BY_ID[name].part not in real:
            part = BY_ID[name].part or "a part that the capability has to name first"
            raise pytest.UsageError(f"{item.nodeid} shows {name!r} without the mark real for {part}.")
    return claims


class Shown:
    """Plugin of the process that hears of every test: collects for each capability which tests passed, and whether any failed."""

    def __init__(self) -> None:
        self.passed: dict[str, Counter[str]] = defaultdict(Counter)
        self.failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name in dict(report.user_properties).get("shows", ()):
            if report.failed:
                self.failed.add(name)
            elif report.when == "call" and report.passed:
                self.passed[name][report.nodeid.partition("::")[0]] += 1

    def pytest_sessionfinish(self) -> None:
        if os.environ.get("SLUICEGATE_WRITE_CAPABILITIES"):
            now, version = datetime.now(UTC), tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
            write(merged(read(), self.passed, self.failed, now=now, version=version))


def merged(
    before: Evidence, passed: Mapping[str, Mapping[str, int]], failed: set[str], *, now: datetime, version: str
) -> Evidence:
    """The evidence after a run. A failure takes a capability's evidence away; one whose tests were left out keeps it, with its date."""
    shown = {
        name: {"files": dict(sorted(files.items())), "shown_at": f"{now:%Y-%m-%dT%H:%M:%SZ}", "version": version}
        for name, files in passed.items()
    }
    tests = {name: own for name, own in {**before["tests"], **shown}.items() if name in BY_ID and name not in failed}
    return {**before, "tests": dict(sorted(tests.items()))}


def proved_steps(report: Mapping[str, Any]) -> list[str]:
    """Names of the steps that a report of the GPU proof proved on a GPU; none of a run on the CPU."""
    if report.get("device") != "gpu":
        return []
    return sorted(step["name"] for step in report["steps"] if step["verdict"] == "proved")


def of_gpu(report: Path) -> Evidence | None:
    """Steps that the GPU proof's report proves, with card and time; None without a report, and for a run on the CPU."""
    if not report.is_file():
        return None
    told = json.loads(report.read_text())
    proved = proved_steps(told)
    at = told["ended_at"] or told["began_at"]  # a run that was cut off has no end
    return {"card": told["machine"]["card"], "ended_at": at, "proved": proved} if proved else None


def read() -> Evidence:
    evidence: Evidence = json.loads(EVIDENCE.read_text())
    return evidence


def write(evidence: Evidence) -> None:
    EVIDENCE.write_text(json.dumps(evidence, indent=2) + "\n")


def summary(rows: list[dict[str, Any]]) -> str:
    """One line for each kind, one column for each state: for README.md."""
    states = [State.RUN_ON_GPU, State.RUN, State.FROM_DOCUMENTS, State.NEVER_RUN]
    lines = ["| | " + " | ".join(states) + " |", "|---" * (len(states) + 1) + "|"]
    for kind, title in KINDS.items():
        of_kind = [row for row in rows if row["kind"] == kind]
        cells = [", ".join(row["name"] for row in of_kind if row["state"] == state) or "–" for state in states]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    if not any(row["state"] == State.RUN_ON_GPU for row in rows):
        lines += ["", "No part has run on a GPU yet."]
    return "\n".join([*lines, "", "Sluicegate has not executed a TensorRT plan yet."])


def whole(rows: list[dict[str, Any]]) -> str:
    """Every row with its scope and its evidence: for docs/capabilities.md."""
    lines = [
        "| state | meaning |",
        "|---|---|",
        *(f"| *{state}* | {meaning} |" for state, meaning in MEANINGS.items()),
        "",
    ]
    for kind, title in KINDS.items():
        lines += [f"**{title}**", "", "| | state | scope | shown by |", "|---|---|---|---|"]
        for row in (row for row in rows if row["kind"] == kind):
            what = " ".join(f"{sentence}." for sentence in (row["scope"], row["instead"]) if sentence)
            seen = [f"GPU proof on {row['card']}"] if row["card"] else []
            seen += [f"`{name}`" for name in row["tests"]]
            if seen:
                seen.append(f"{row['shown_at'][:10]}" + (f", version {row['version']}" if row["version"] else ""))
            lines.append(f"| {row['name']} | {row['state']} | {what} | {', '.join(seen) or '–'} |")
        lines.append("")
    return "\n".join(lines).strip()


PAGES = {ROOT / "README.md": summary, ROOT / "docs" / "capabilities.md": whole}


def with_table(text: str, rendered: str) -> str:
    """The page with the table between its two markers. Raises ValueError for a page without them."""
    made, count = re.subn(f"(?s){BEGIN}.*{END}", lambda _: f"{BEGIN}\n{rendered}\n{END}", text)
    if count != 1:
        raise ValueError(f"The page has {count} places between {BEGIN} and {END}, not one.")
    return made


def main() -> None:
    evidence = {**read(), "gpu": of_gpu(GPU_REPORT)}
    write(evidence)
    rows = table(evidence)
    for page, render in PAGES.items():
        page.write_text(with_table(page.read_text(), render(rows)))


if __name__ == "__main__":
    main()
