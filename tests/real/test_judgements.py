"""The judge alone over a real Prometheus: two queries for each arm, a window, a counter that began anew."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from rollouts.core.judgement import JudgeQuestion, judge
from rollouts.engine.judged_history import readings_since
from serving.ports import CounterQuery
from serving.traffic.adapters.prometheus import Prometheus
from tests.support.rigs.prometheus_rig import ScrapedExporter, prometheus_process

pytestmark = pytest.mark.real("prometheus")
QUESTION = JudgeQuestion(has_stable=True)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScrapedExporter]:
    with prometheus_process(tmp_path_factory.mktemp("judged")) as one:
        yield one


def queries(job: str) -> list[CounterQuery]:
    found = []
    for arm in ("candidate", "stable"):
        own = f'requests_total{{job_name="{job}",arm="{arm}"'
        found += [
            CounterQuery(f"{arm} bad", f'sum({own},code="500"}}) or vector(0)'),
            CounterQuery(f"{arm} total", f"sum({own}}})"),
        ]
    return found


def serve(process: ScrapedExporter, job: str, shares: dict[str, float], rounds: int, restart: bool = False) -> int:
    """Counts 200 requests a second of each arm, and returns when that began."""
    process.scraped()
    began = int(time.time())
    for one in range(rounds):
        for arm, share in shares.items():
            for code, part in (("500", share), ("200", 1 - share)):
                key = "requests_total", (("arm", arm), ("code", code), ("job_name", job))
                before = 0 if restart and one == rounds // 2 else process.exporter.values.get(key, 0)
                process.exporter.values[key] = before + round(200 * part)
        time.sleep(1)
    process.scraped()
    return began


def ask(process: ScrapedExporter, job: str, since: int) -> Any:
    found = readings_since(Prometheus(process.url), queries(job), QUESTION, since=since, step_s=1)
    return found if isinstance(found, str) else judge(found, QUESTION)


def test_a_worse_candidate_fails_and_a_sound_one_passes(process: ScrapedExporter) -> None:
    since = serve(process, "worse", {"candidate": 0.2, "stable": 0.01}, 6)
    found = ask(process, "worse", since)
    assert (found.verdict, found.code) == ("failed", "worse_than_stable")
    assert found.judged.candidate >= 200 and ask(process, "worse", since).until == found.until
    since = serve(process, "sound", {"candidate": 0.01, "stable": 0.01}, 12)
    assert ask(process, "sound", since).verdict == "passed"


def test_a_counter_that_began_anew_costs_an_interval(process: ScrapedExporter) -> None:
    since = serve(process, "anew", {"candidate": 0.01, "stable": 0.01}, 8, restart=True)
    found = ask(process, "anew", since)
    assert found.verdict != "failed" and 600 <= found.judged.candidate <= 200 * 7


def test_what_prometheus_refuses_or_lacks_is_told(process: ScrapedExporter) -> None:
    since = int(time.time()) - 5
    assert "no_data" in ask(process, "never", since)
    bad = [CounterQuery(f"{arm} {kind}", "sum(") for arm in ("candidate", "stable") for kind in ("bad", "total")]
    said = readings_since(Prometheus(process.url), bad, QUESTION, since=since, step_s=1)
    assert isinstance(said, str) and "refused" in said and "parse error" in said
    away = readings_since(Prometheus("http://127.0.0.1:9"), bad, QUESTION, since=since, step_s=1)
    assert isinstance(away, str) and "unreachable" in away
    for code in ("200", "500"):
        process.exporter.values["requests_total", (("code", code), ("job_name", "many"))] = 1.0
    process.scraped()
    time.sleep(1)
    several = [CounterQuery(one.name, 'requests_total{job_name="many"}') for one in bad]
    told = readings_since(Prometheus(process.url), several, QUESTION, since=since, step_s=1)
    assert isinstance(told, str) and "put sum" in told
    future = datetime.now(UTC).timestamp() + 60
    assert readings_since(Prometheus(process.url), queries("worse"), QUESTION, since=int(future), step_s=1) == []
