"""Names of NVIDIA's GPUs: one spelling for each product, and the compute capability of those that serve models most."""

from __future__ import annotations

import re
from typing import Final

#: Compute capability → product names as `sku` spells them, up to a hyphen or their end. Source: NVIDIA, "CUDA GPU Compute Capability".
_PRODUCTS: Final = {
    "7.5": r"(tesla-)?t4g?|(geforce-)?rtx-20\d\d",
    "8.0": r"a(30|100|800)",
    "8.6": r"a(2|10g?|16|40)|rtx-a\d{4}|(geforce-)?rtx-30\d\d",
    "8.9": r"l(4|20|40s?)|rtx-\d{4}-ada|(geforce-)?rtx-40\d\d",
    "9.0": r"h(20|100|200|800)|gh200",
    "10.0": r"g?b200",
    "12.0": r"rtx-pro-\d{4}-blackwell|(geforce-)?rtx-50\d\d",
}


def sku(name: str) -> str:
    """A product's name as labels and drivers spell it differently: `NVIDIA L4` and `NVIDIA-L4-SHARED` are `l4`."""
    plain = "-".join(name.lower().replace("_", "-").split())
    return plain.removesuffix("-shared").split("-mig-")[0].removeprefix("nvidia-")


def capability_of(name: str) -> str | None:
    """The compute capability of a product; None if this table lacks it."""
    plain = sku(name)
    return next((one for one, names in _PRODUCTS.items() if re.match(rf"({names})(-|$)", plain)), None)


def version_parts(version: str) -> tuple[int, ...]:
    """Four numbers, of which versions and compute capabilities compare: (8, 9, 0, 0) of `8.9`."""
    numbers = [int(part) for part in version.split(".")]
    return tuple(numbers + [0] * (4 - len(numbers)))
