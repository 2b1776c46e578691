"""Every sentence that an event may have as its reason rests on something that was checked."""

from __future__ import annotations

from tests.support.house.event_sentences import RESTS_ON, sentences


def test_every_sentence_of_an_event_names_the_fact_that_it_rests_on() -> None:
    missing = {text: place for text, place in sentences().items() if text not in RESTS_ON}
    assert missing == {}, (
        "add what the code checked before it writes this to RESTS_ON in tests/support/house/event_sentences.py"
    )


def test_the_table_has_no_sentence_that_nothing_writes() -> None:
    assert sorted(set(RESTS_ON) - set(sentences())) == []


def test_a_new_sentence_is_found() -> None:
    found = sentences()
    assert found["{} was promoted over it."].startswith("rollouts/actions/engine_effects.py:")
    assert found["it once served, so it is tried again"].startswith("serving/targets/agent/reconciler.py:")
    assert found["Every gateway has acknowledged weight 0."].startswith("rollouts/actions/engine_effects.py:")
