"""Every error says what is wrong, carries its facts, and knows its status."""

from __future__ import annotations

import pytest

from ledger.core import errors
from ledger.core.errors import DomainError

STATUS = {
    "Refused": 403, "NotFound": 404, "StateChanged": 409, "Stale": 412, "Invalid": 422, "PreconditionRequired": 428, "Throttled": 429,
    "Unavailable": 503,
}  # fmt: skip


def test_every_class_is_listed_here() -> None:
    assert {cls.__name__ for cls in DomainError.__subclasses__() if cls.__module__ == errors.__name__} == set(STATUS)


@pytest.mark.parametrize(("name", "status"), sorted(STATUS.items()))
def test_an_error_prints_its_sentence_and_code(name: str, status: int) -> None:
    error = getattr(errors, name)("some_code", "The valve is shut; open it first.", valve=3)
    assert str(error) == "The valve is shut; open it first. [some_code]"
    assert (error.status, error.code, error.facts) == (status, "some_code", {"valve": 3})


def test_a_refused_field_is_said_and_listed() -> None:
    error = errors.field_error("name", "It is taken.", "Choose another one.")
    assert (error.status, error.message) == (422, "It is taken. Choose another one.")
    assert error.facts == {"errors": [{"field": "name", "message": "It is taken.", "fix": "Choose another one."}]}


def test_the_family_has_a_status_of_its_own() -> None:
    assert DomainError("odd", "Something is odd.").status == 400
