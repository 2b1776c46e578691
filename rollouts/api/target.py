"""The rollback target as the API answers it."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers


class TargetOut(serializers.Serializer[Any]):
    """What a rollback would go to now."""

    release = serializers.CharField(allow_null=True, help_text="null where there is nothing to go back to")
    message = serializers.CharField(help_text="the same in sentences, with what to do")
    is_missing = serializers.BooleanField(help_text="there should be a target, and it has no server")
