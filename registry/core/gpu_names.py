"""Names of NVIDIA's GPUs, one spelling for each product, and versions that compare."""

from __future__ import annotations


def sku(name: str) -> str:
    """A product's name as labels and drivers spell it differently: `NVIDIA L4` and `NVIDIA-L4-SHARED` are `l4`."""
    plain = "-".join(name.lower().replace("_", "-").split())
    return plain.removesuffix("-shared").split("-mig-")[0].removeprefix("nvidia-")


def version_parts(version: str) -> tuple[int, ...]:
    """Four numbers, of which versions and compute capabilities compare: (8, 9, 0, 0) of `8.9`."""
    numbers = [int(part) for part in version.split(".")]
    return tuple(numbers + [0] * (4 - len(numbers)))
