"""The pages' files as the web process serves them: collected at its start, named by content, kept for ever, compressed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.test import Client

from web.static_files import collect


@pytest.fixture
def real_storage(settings: Any, tmp_path: Path) -> Path:
    settings.STATIC_ROOT = tmp_path / "static"
    settings.WHITENOISE_USE_FINDERS = False
    settings.STORAGES = {
        **settings.STORAGES,
        "staticfiles": {"BACKEND": "web.static_files.HashedFiles"},
    }
    return tmp_path / "static"


@pytest.mark.django_db
def test_files_are_named_by_their_content(real_storage: Path) -> None:
    assert collect() and not collect()
    client = Client()
    page = client.get("/sign-in/").content.decode()
    linked = re.findall(r'(?:href|src)="(/static/[^"#]+)', page)
    assert len(linked) >= 7
    for address in linked:
        assert re.search(r"\.[0-9a-f]{12}\.\w+$", address), address
        answer = client.get(address, headers={"Accept-Encoding": "gzip"})
        size = len(answer.getvalue())
        answer.close()
        assert answer.status_code == 200 and "immutable" in answer.headers["Cache-Control"], address
        assert answer.headers.get("Content-Encoding") == "gzip" or size < 200, address
        assert "Content-Security-Policy" in answer.headers


def test_what_changed_is_collected_again(real_storage: Path, settings: Any, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    settings.STATICFILES_DIRS = [source]
    for text in ("a {}", "b {}"):
        (source / "one.css").write_text(text)
        assert collect() and not collect()
    assert len(list(real_storage.glob("one.*.css"))) == 2  # a page that is open goes on finding what it names


def test_a_folder_that_cannot_be_written_is_named(real_storage: Path, tmp_path: Path) -> None:
    real_storage.write_text("not a folder")
    with pytest.raises(ImproperlyConfigured, match="collectstatic"):
        collect()


def test_files_that_somebody_else_collected_will_do(real_storage: Path) -> None:
    call_command("collectstatic", interactive=False, verbosity=0)
    (real_storage / ".lock").mkdir()  # it cannot be written, as in a container that may only read
    assert not collect()


def test_nothing_is_collected_while_debugging(real_storage: Path, settings: Any) -> None:
    settings.DEBUG = True
    assert not collect() and not real_storage.exists()


@pytest.mark.django_db
def test_pages_are_compressed_and_answers_of_the_api_are_not(client: Client) -> None:
    gzip = {"Accept-Encoding": "gzip"}
    assert client.get("/sign-in/", headers=gzip).headers["Content-Encoding"] == "gzip"
    assert "Content-Encoding" not in client.get("/api/v1/schema", headers=gzip).headers
    assert "Content-Encoding" not in client.get("/sign-in/").headers
