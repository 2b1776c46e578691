"""REST form of `registry.core.gpu_memory`."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers


class MemoryPartOut(serializers.Serializer[Any]):
    name = serializers.ChoiceField(choices=["weights", "activations", "workspace", "runtime"])
    mib = serializers.IntegerField(allow_null=True, help_text="MiB on each device; null: unknown")
    is_partial = serializers.BooleanField(help_text="something of the part is not counted")
    source = serializers.CharField(help_text="where the number comes from, or why it is unknown")  # type: ignore[assignment]


class MemoryEstimateOut(serializers.Serializer[Any]):
    """GPU memory on each device, estimated from files and release.yaml before the release runs."""

    total_mib = serializers.IntegerField(help_text="the known parts together")
    is_partial = serializers.BooleanField(help_text="a part is unknown, or not counted whole")
    instances = serializers.IntegerField(help_text="model instances on each device")
    parts = MemoryPartOut(many=True)
