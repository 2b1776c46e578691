"""Where a replica of a release goes, and why it can go nowhere else: pure, so that it can be said before it is done.

A node is refused where it contradicts the envelope or has no room left of what replicas hold there; what it does not tell refuses
nothing. Among the others the replicas of a release are spread over nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Demand:
    """What one replica asks of its node: MiB of host memory, and so many GPUs, or MIG slices of one of the `profiles`, with MiB of
    memory on each. `mib_each` None: the whole device, which it shares with nobody."""

    memory_mib: int = 0
    devices: int = 0
    mib_each: int | None = 0
    profiles: tuple[str, ...] = ()


@dataclass(frozen=True)
class Device:
    """A GPU or a MIG slice of a node. `mib` None: it does not tell. `profile`: of a slice; empty for a whole GPU."""

    mib: int | None = None
    profile: str = ""


@dataclass(frozen=True)
class Claim:
    """What a replica holds of its node for as long as it is there. `devices`: the MiB that it holds of each; None is all of it."""

    memory_mib: int = 0
    devices: Mapping[str, int | None] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {"memory_mib": self.memory_mib, "devices": dict(self.devices)}


@dataclass(frozen=True)
class Spot:
    """A node as placement looks at it.

    `refusal`: why it takes no replica of this release, as a sentence; empty where it may. `rank`: how well it fits, 0 is best.

    `memory_mib` None and `devices` None: it does not tell. `held`: what is held there. `alike`: replicas of the release in the
    environment that are there.
    """

    node: str
    refusal: str = ""
    rank: int = 0
    memory_mib: int | None = None
    devices: Mapping[str, Device] | None = None
    held: tuple[Claim, ...] = ()
    alike: int = 0

    @property
    def free_mib(self) -> int | None:
        return None if self.memory_mib is None else self.memory_mib - sum(one.memory_mib for one in self.held)


@dataclass(frozen=True)
class Choice:
    """The node and what is held of it; `node` is empty where none will do. `refused`: a sentence for each node that will not."""

    node: str = ""
    claim: Claim = Claim()
    refused: tuple[str, ...] = ()


def demand_of(envelope: Mapping[str, Any]) -> Demand:
    """What the envelope declares. A release that shares its device and declares no memory of it holds nothing of it."""
    memory = int((envelope.get("host") or {}).get("memory_mib_min") or 0)
    asked = envelope.get("accelerator") or {}
    if asked.get("vendor", "none") == "none":
        return Demand(memory)
    mib = asked.get("memory_mib_peak_declared") or asked.get("memory_mib_min") or 0
    profiles = tuple((asked.get("mig") or {}).get("profiles") or ())
    return Demand(memory, int(asked.get("count", 1)), None if asked.get("exclusive") else int(mib), profiles)


def claim_of(told: Mapping[str, Any]) -> Claim:
    """What `Claim.as_json` gave; nothing, of a replica that was placed before claims were written down."""
    return Claim(int(told.get("memory_mib") or 0), dict(told.get("devices") or {}))


def choose(demand: Demand, spots: Sequence[Spot]) -> Choice:
    """Returns the best node for one more replica: with the fewest replicas of the release, then the best fit, then the most free
    memory, then the fewest replicas of any release. Of equals, the first."""
    open_to, refused = [], []
    for spot in spots:
        claim = spot.refusal or fit_in(demand, spot)
        if isinstance(claim, str):
            refused.append(f"{spot.node}: {claim}")
        else:
            open_to.append((spot, claim))
    if not open_to:
        return Choice(refused=tuple(refused))

    def cost(found: tuple[Spot, Claim]) -> tuple[int, int, int, int]:
        spot, _ = found
        return spot.alike, spot.rank, -(spot.free_mib or 0), len(spot.held)

    best, claim = min(open_to, key=cost)
    return Choice(best.node, claim, tuple(refused))


def fit_in(demand: Demand, spot: Spot) -> Claim | str:
    """What a replica would hold of the node; a sentence, where what is left there is too little."""
    free = spot.free_mib
    if free is not None and demand.memory_mib > free:
        return f"{max(free, 0)} MiB of memory are left of {spot.memory_mib}, and it declares {demand.memory_mib}."
    if not demand.devices or spot.devices is None:
        return Claim(demand.memory_mib)
    wanted = _alike(demand, spot.devices)
    held = _taken(spot.held)
    free_ones = sorted(
        (headroom, name)
        for name, device in wanted.items()
        if (headroom := _headroom(device, held.get(name, []))) is not None
        and _has(headroom, device, demand, held.get(name, []))
    )
    if len(free_ones) < demand.devices:
        what = "devices" if demand.mib_each is None else f"devices with {demand.mib_each} MiB"
        return f"{len(free_ones)} {what} of {len(wanted)} are free for it, and it declares {demand.devices}."
    # The fullest that will do: what is left whole is left for who needs a whole one.
    return Claim(demand.memory_mib, {name: demand.mib_each for _, name in free_ones[: demand.devices]})


def _alike(demand: Demand, devices: Mapping[str, Device]) -> dict[str, Device]:
    """Slices of the asked profiles where there are some, else the whole GPUs."""
    slices = {name: one for name, one in devices.items() if one.profile and one.profile in demand.profiles}
    return slices or {name: one for name, one in devices.items() if not one.profile}


def _taken(claims: Iterable[Claim]) -> dict[str, list[int | None]]:
    held: dict[str, list[int | None]] = {}
    for claim in claims:
        for name, mib in claim.devices.items():
            held.setdefault(name, []).append(mib)
    return held


def _headroom(device: Device, held: Sequence[int | None]) -> int | None:
    """MiB that nobody holds, 0 where the device does not tell its size; None where somebody holds all of it."""
    sizes = [mib for mib in held if mib is not None]
    return None if len(sizes) < len(held) else (device.mib or 0) - sum(sizes)


def _has(headroom: int, device: Device, demand: Demand, held: Sequence[int | None]) -> bool:
    if demand.mib_each is None:
        return not held
    return device.mib is None or headroom >= demand.mib_each
