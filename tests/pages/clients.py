"""Who looks at pages: browsers that are signed in, and a model's team that sends files by their forms."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from accounts.actions import actor_for
from accounts.models import User
from registry.models import ServedModel
from tests.support.worlds.registry_samples import person, served_model


def signed_in(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def dev() -> User:
    """Of the team of the model sentiment, which is there."""
    user = person("dev")
    served_model(actor_for(user))
    return user


def send_file(client: Client, address: str, content: bytes, **fields: Any) -> Any:
    """What comes of the form there, with the model's version as it is now, and the page that it leads to."""
    file = SimpleUploadedFile("sent", content)
    return client.post(address, {"file": file, "version": ServedModel.objects.get().version, **fields}, follow=True)
