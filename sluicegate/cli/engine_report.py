"""What `sluicegate engine` prints of a comparison."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sluicegate.cli import exits
from sluicegate.cli.output import Output


def tell(output: Output, found: dict[str, Any]) -> int:
    """Prints it, and gives the exit code."""
    output.result(found, lines(found))
    return exits.of_agreement(found["verdict"])


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The comparison for people, the verdict last."""
    for one in found.get("profile", []):
        low, usual, high = ("×".join(map(str, one[name])) for name in ("min", "opt", "max"))
        yield f"{one['input']}: {low} to {high}, tuned for {usual}"
    if "requests" in found:
        yield (
            f"{len(found['requests'])} requests on {found['device']} (compute capability {found['compute_capability']}), "
            f"held against ONNX Runtime {found['onnxruntime']} on the processor"
        )
    for one in found.get("outputs", []):
        yield from _output(one)
    yield from (f"  {detail}" for detail in found["details"])
    if "engine" in found:  # it was built just now
        is_taken = "compared" in found["engine"]
        yield f"The plan is {found['plan']}" + ("." if is_taken else ", which push does not send.")
    yield f"{found['verdict']}: {found['reason']}"


def _output(one: dict[str, Any]) -> Iterator[str]:
    limit = one["tolerance"]["relative"]
    allowed = "no tolerance" if limit is None else f"{limit:g} allowed"
    share = "no elements" if not one["elements"] else f"{one['beyond']} of {one['elements']} elements beyond it"
    yield (
        f"{one['verdict']} {one['output']} {one['data_type']}: largest difference {one['largest_absolute']:.3g}, "
        f"relative {one['largest_relative']:.3g} ({allowed}: {one['tolerance']['source']}), {share}, "
        f"cosine {1 - one['cosine_distance']:.7f}, between batches {one['off_by_batch']:.3g}"
    )
    yield from (f"  {note}" for note in one["notes"])
