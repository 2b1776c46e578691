"""How a node's GPUs are told over REST: as they were read last."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers


class XidOut(serializers.Serializer[Any]):
    code = serializers.IntegerField()
    at = serializers.DateTimeField(help_text="when the agent heard of it")


class GpuOut(serializers.Serializer[Any]):
    """A GPU or a MIG slice. Null is unknown, and `unknown` says why."""

    uuid = serializers.CharField()
    name = serializers.CharField(allow_null=True)
    parent_uuid = serializers.CharField(allow_null=True, help_text="of a slice: its GPU")
    faults = serializers.ListField(child=serializers.CharField(), help_text="of the hardware, as far as is known")
    untold = serializers.ListField(
        child=serializers.CharField(), help_text="what faults rest on and nobody told of: there may be one all the same"
    )
    busy_frac = serializers.FloatField(allow_null=True, help_text="of the time in which some kernel ran")
    memory_used_bytes = serializers.IntegerField(allow_null=True)
    memory_total_bytes = serializers.IntegerField(allow_null=True)
    temperature_c = serializers.FloatField(allow_null=True)
    temperature_margin_c = serializers.FloatField(allow_null=True, help_text="until it slows itself down")
    power_w = serializers.FloatField(allow_null=True)
    power_limit_w = serializers.FloatField(allow_null=True)
    sm_clock_mhz = serializers.IntegerField(allow_null=True)
    sm_clock_max_mhz = serializers.IntegerField(allow_null=True)
    ecc_corrected = serializers.IntegerField(allow_null=True, help_text="since the driver was loaded")
    ecc_uncorrected = serializers.IntegerField(allow_null=True, help_text="since the driver was loaded")
    recovery_action = serializers.IntegerField(allow_null=True, help_text="as nvml.h has it; 0: none is called for")
    pcie_width = serializers.IntegerField(allow_null=True)
    pcie_width_max = serializers.IntegerField(allow_null=True)
    row_remap_pending = serializers.BooleanField(allow_null=True)
    row_remap_failed = serializers.BooleanField(allow_null=True)
    is_sliced = serializers.BooleanField(allow_null=True, help_text="in MIG mode")
    processes = serializers.IntegerField(
        source="process_count", default=None, allow_null=True, help_text="how many compute on it"
    )
    xids = XidOut(many=True, allow_null=True)
    unknown = serializers.DictField(child=serializers.CharField(), help_text="why, by field")


class GpusOut(serializers.Serializer[Any]):
    """A node's GPUs as its agent read them last."""

    at = serializers.DateTimeField(source="gpus_read_at", allow_null=True)
    why_unknown = serializers.CharField(
        source="gpus_read_why_not", allow_blank=True, help_text="nothing is known of their state now; empty: it is"
    )
    gpus = GpuOut(source="gpus_read.gpus", default=(), many=True)
