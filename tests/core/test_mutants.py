"""The mutation tool: which changes it makes, where it leaves the text alone, and how it counts."""

from __future__ import annotations

import ast
from textwrap import dedent

import pytest

from tests.mutants import page, score, suite
from tests.mutants.meet import Met
from tests.mutants.mutate import Mutant, mutants_of
from tests.mutants.score import Equivalent, mistaken, scores


def changes(source: str) -> list[tuple[str, str]]:
    return [(one.before, one.after) for one in mutants_of("a.py", dedent(source))]


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("a < b", ["a <= b"]),
        ("a <= b", ["a < b"]),
        ("a > b", ["a >= b"]),
        ("a >= b", ["a > b"]),
        ("a == b", ["a != b"]),
        ("a != b", ["a == b"]),
        ("a is None", ["a is not None"]),
        ("a is not  None", ["a is None"]),
        ("a in b", ["a not in b"]),
        ("a not in b", ["a in b"]),
        ("a < b <= c", ["a <= b <= c", "a < b < c"]),
        ("a + b", ["a - b"]),
        ("a - (b)", ["a + (b)"]),
        ("a * b", ["a / b"]),
        ("a / b", ["a * b"]),
        ("a // b", ["a * b"]),
        ("a += b", ["a -= b"]),
        ("a and b and c", ["a or b or c"]),
        ("a or b", ["a and b"]),
        ("not a", ["a"]),
        ("f(not(a))", ["f((a))"]),
        ("-a", ["a"]),
        ("f(0, 7)", ["f(1, 7)", "f(0, 8)"]),
        ("f(0.5, 0.0)", ["f(1.0, 0.0)", "f(0.5, 1.0)"]),
        ("f(True, b=False)", ["f(False, b=False)", "f(True, b=True)"]),
        ("min(a)", ["max(a)"]),
        ("any(a)", ["all(a)"]),
    ],
)
def test_each_operator_and_constant_is_changed_alone(line: str, changed: list[str]) -> None:
    before = " ".join(line.split())
    assert changes(line) == [(before, after) for after in changed]


@pytest.mark.parametrize(
    "line",
    [
        '"text"',
        '"""A docstring: 1 < 2."""',
        'f"{a + 1}"',
        '"a" + b',
        "assert a < 1",
        "isinstance(a, int)",
        "a: tuple[Literal[1], ...]",
        "def f(a: Literal[1]) -> Literal[2]: ...",
        "@decorated(1)\ndef f(): ...",
        "@dataclass(frozen=True)\nclass A: ...",
        "class A:\n    __slots__ = (1,)",
        "zip(a, b, strict=True)",
        "def f():\n    return\n",
        "def f():\n    return None\n",
        "if TYPE_CHECKING:\n    a = 1",
    ],
)
def test_text_annotations_and_type_checks_are_left_alone(line: str) -> None:
    assert changes(line) == []


def test_a_result_is_left_out() -> None:
    assert changes("def f(a):\n    return a") == [("return a", "return None")]
    assert changes("def f(a):\n    return False") == [("return False", "return True")]
    assert changes("def f(a):\n    return 0") == [("return 0", "return None"), ("return 0", "return 1")]


def test_comments_between_the_sides_are_no_operators() -> None:
    assert [one.edits for one in mutants_of("a.py", "a = (\n    b  # this + that\n    + c\n)")] == [((31, 32, "-"),)]


def test_umlauts_before_an_operator_do_not_shift_it() -> None:
    assert changes('f("größer", a < b)') == [('f("größer", a < b)', 'f("größer", a <= b)')]


def test_a_mutant_knows_the_outermost_function_whose_code_it_changes() -> None:
    source = """
        LIMIT = 1

        class A:
            most: int = 2

            @property
            def f(self, n=3):
                def inner():
                    return self.most < 4
                return inner
    """
    found = mutants_of("a.py", dedent(source))
    assert {one.after: one.scope for one in found} == {
        "LIMIT = 2": None,
        "most: int = 3": None,
        "def f(self, n=4):": None,
        "return self.most <= 4": ("A.f", 7),
        "return self.most < 5": ("A.f", 7),
        "return None": ("A.f", 7),
    }


@pytest.mark.slow
def test_every_mutant_of_the_cores_is_python_and_another_program() -> None:
    """Of a sixth of the modules, the longest among them: that reads all the ways in which the product writes an operator."""
    paths = sorted(suite.modules(), key=lambda path: -(suite.ROOT / path).stat().st_size)[::6]
    for path in paths:
        source = (suite.ROOT / path).read_text()
        same = ast.dump(ast.parse(source))
        for one in mutants_of(path, source)[::5]:
            assert ast.dump(ast.parse(one.applied(source))) != same, str(one)


@pytest.mark.slow
def test_tests_reach_modules_through_others_and_the_near_ones_come_first() -> None:
    reaching = suite.reaching("rollouts/core/evidence.py")
    assert "tests/core/test_simulation.py" in reaching
    assert reaching.index("tests/core/test_evidence.py") < reaching.index("tests/core/test_simulation.py")
    assert "tests/core/test_pbtxt.py" not in reaching


THREE = [*mutants_of("a.py", "a < 1"), *mutants_of("b.py", "b = True")]
HALF = {0: Met("killed", "t"), 1: Met("survived", ""), 2: Met("late", "")}
SAME = Equivalent("a.py", "a < 1", "a < 2", "a is never 1")


def test_the_score_leaves_out_what_cannot_be_noticed() -> None:
    one, other = scores(THREE, HALF, [])
    assert (one.met, one.killed, one.share, [str(mutant) for mutant in one.survivors]) == (
        *(2, 1, 0.5),
        ["a.py:1: a < 1 → a < 2"],
    )
    assert (other.killed, other.late, other.share) == (1, 1, 1.0)
    one, _ = scores(THREE, HALF, [SAME])
    assert (one.equivalent, one.survivors, one.share) == (1, [], 1.0)


def test_an_entry_that_matches_nothing_or_is_killed_is_told() -> None:
    assert mistaken([SAME], THREE, HALF) == []
    gone = Equivalent("a.py", "a < 1", "a > 1", "reason")
    killed = Equivalent("a.py", "a < 1", "a <= 1", "reason")
    elsewhere = Equivalent("c.py", "a < 1", "a > 1", "reason")
    assert mistaken([gone, killed, elsewhere], THREE, HALF) == [
        "No such mutant any more: a.py: a < 1 → a > 1",
        "Not equivalent, t kills it: a.py: a < 1 → a <= 1",
    ]


def test_the_committed_entries_match_mutants_of_today() -> None:
    entries = score.read_equivalents(suite.ROOT / "tests" / "mutants" / "equivalent.toml")
    modules = {entry.module for entry in entries}
    assert modules <= set(suite.modules())
    assert mistaken(entries, score.read_mutants(sorted(modules)), {}) == []


def test_a_sample_is_the_same_each_time_and_takes_small_modules_whole() -> None:
    many: list[Mutant] = mutants_of("a.py", "\n".join(f"a{n} = {n}" for n in range(50)))
    few = mutants_of("b.py", "b = 1")
    drawn = score.sample([*many, *few], 10, 1)
    assert drawn == score.sample([*many, *few], 10, 1) != score.sample([*many, *few], 10, 2)
    assert len(drawn) == 11
    assert drawn[-1] == 50


def test_the_page_says_how_many_were_drawn() -> None:
    found = scores(THREE, HALF, [SAME])
    assert "| a.py | 2 | 1 | 0 | 1 | 100.0% |\n" in page.page(found, 0, 0)
    assert "| **all** | 3 | 2 | 0 | 1 | 100.0% |\n" in page.page(found, 0, 0)
    drawn = page.page(found, 60, 7)
    assert "--page --sample 60 --seed 7`" in drawn
    assert "| a.py | 2 | 2 | 1 | 0 | 1 | 100.0% |\n" in drawn
