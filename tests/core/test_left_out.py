"""The end of a run names each test that needs root as not run, apart from tests that lack a part."""

from __future__ import annotations

from types import SimpleNamespace

from tests.conftest import NOT_ROOT, LeftOut


class Terminal:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def section(self, title: str) -> None:
        self.lines.append(f"= {title}")

    def line(self, text: str) -> None:
        self.lines.append(text)


def printed(*skipped: tuple[str, str]) -> list[str]:
    """Lines at the end of a run in which these tests were skipped: (test, why)."""
    left_out, terminal = LeftOut(), Terminal()
    for test, why in skipped:
        report = SimpleNamespace(skipped=True, longrepr=("file", 1, f"Skipped: {why}"), nodeid=test)
        left_out.pytest_runtest_logreport(report)  # type: ignore[arg-type]
    left_out.pytest_terminal_summary(terminal)
    return terminal.lines


def test_tests_that_need_root_are_listed_one_by_one_as_not_run() -> None:
    lines = printed(("tests/a.py::test_b[root: x]", NOT_ROOT), ("tests/a.py::test_b[root: y]", NOT_ROOT))
    assert lines == [
        "= not run: these need root",
        "2 tests. Run them as root: make test ARGS='-m needs_root'",
        "    tests/a.py::test_b[root: x]",
        "    tests/a.py::test_b[root: y]",
    ]


def test_a_part_that_is_absent_is_named_apart() -> None:
    lines = printed(("tests/a.py::test_c", NOT_ROOT), ("tests/a.py::test_d[1]", "jq is not here (install jq)"))
    assert lines[-3:] == ["= left out", "1 because jq is not here (install jq):", "    tests/a.py::test_d"]
    assert printed() == []
