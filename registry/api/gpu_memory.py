"""REST form of `registry.core.gpu_memory`."""

from __future__ import annotations

from rest_framework import serializers

from accounts.api.shapes import Shape, described


class MemoryPartOut(Shape):
    name = serializers.ChoiceField(choices=["weights", "activations", "workspace", "runtime"])
    mib: int | None = described("MiB on each device; null: unknown")
    is_partial: bool = described("something of the part is not counted")
    source: str = described("where the number comes from, or why it is unknown")


class MemoryEstimateOut(Shape):
    """GPU memory on each device, estimated from files and release.yaml before the release runs."""

    total_mib: int = described("the known parts together")
    is_partial: bool = described("a part is unknown, or not counted whole")
    instances: int = described("model instances on each device")
    parts: list[MemoryPartOut]
