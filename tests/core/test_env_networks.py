"""Networks in the environment, however they are written."""

from __future__ import annotations

import pytest
from django.core.exceptions import ImproperlyConfigured

from sluicegate import env


@pytest.mark.parametrize("said", ["10.20.0.0/16", "10.20.0.0/255.255.0.0", "10.20.0.0/0.0.255.255"])
def test_a_network_is_told_by_its_length(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETWORKS", f"{said}, 127.0.0.1")
    assert env.networks("NETWORKS") == ["10.20.0.0/16", "127.0.0.1/32"]


def test_what_is_no_network_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETWORKS", "10.20.0.1/16")
    with pytest.raises(ImproperlyConfigured, match="has host bits set; write networks such as"):
        env.networks("NETWORKS")
