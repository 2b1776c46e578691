"""Nodes as rows, their servers as cells coloured by state, and how much of a node's memory is taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from web.plots.axes import label_at
from web.plots.markup import escaped, is_known, number
from web.plots.plot import Frame, Key, Plot, empty, plot_of
from web.plots.scales import Unit, text_of

CELL, ROW = 104.0, 44.0
MOST_NODES = 60


@dataclass(frozen=True)
class Cell:
    """One server. `look`: ok, running, waiting, bad or idle; `word` is its state in words, which stands beside its name."""

    label: str
    look: str
    word: str


@dataclass(frozen=True)
class NodeRow:
    """`used` and `total` in bytes; None where that is unknown (then no bar is drawn, and the table says so)."""

    label: str
    cells: Sequence[Cell]
    used: float | None = None
    total: float | None = None
    note: str = ""


def fleet_map(title: str, caption: str, nodes: Sequence[NodeRow], *, name: str = "") -> Plot:
    """The first 60 nodes are drawn; the table has a row for each server, and for each node without servers."""
    if not nodes:
        return empty(title, "No node has been heard of.", name=name)
    shown = list(nodes)[:MOST_NODES]

    def draw(frame: Frame) -> tuple[str, float]:
        parts, y = [], 4.0
        for node in shown:
            drawn, y = _node(frame, node, y)
            parts.append(drawn)
        if len(nodes) > MOST_NODES:
            parts.append(label_at(4, y + 15, f"and {len(nodes) - MOST_NODES} more nodes", look="none"))
            y += ROW / 2
        return "".join(parts), y + 4

    rows = []
    for node in nodes:
        memory = f"{_bytes(node.used)} of {_bytes(node.total)}"
        rows += [[node.label, cell.label, cell.word, memory, node.note] for cell in node.cells]
        if not node.cells:
            rows.append([node.label, "–", "no server", memory, node.note])
    looks = {cell.look: cell.word for node in shown for cell in node.cells}
    key = [Key(look, word) for look, word in looks.items()]
    return plot_of(
        title, caption, draw, ("Node", "Server", "State", "Memory", "Note"), rows, name=name, key=key, left=120
    )


def _node(frame: Frame, node: NodeRow, y: float) -> tuple[str, float]:
    """Its drawing, and where the next one begins; cells that do not fit side by side go on beneath."""
    letters = 14 if frame.is_narrow else 18
    parts = [label_at(4, y + 15, node.label, most=letters)]
    if node.used is not None and node.total is not None and is_known(node.used / max(node.total, 1.0)):
        width = frame.left - 20
        share = min(1.0, max(0.0, node.used / max(node.total, 1.0)))
        look = "bad" if share > 0.95 else "waiting" if share > 0.85 else "stable"
        parts.append(
            f'<path class="box" d="M4 {number(y + 22)}h{number(width)}v7h{number(-width)}z"/>'
            f'<path class="fill {look}" d="M4 {number(y + 22)}h{number(width * share)}v7h{number(-width * share)}z"/>'
        )
    across = max(1, int(frame.span // CELL))
    for index, cell in enumerate(node.cells):
        x, top = frame.left + (index % across) * CELL, y + (index // across) * (ROW - 6)
        look = escaped(cell.look)
        parts.append(
            f'<path class="cell {look}" d="M{number(x)} {number(top)}h{number(CELL - 6)}v32h{number(6 - CELL)}z"/>'
            + label_at(x + 6, top + 13, _fitted(cell.label), look="cell-name")
            + label_at(x + 6, top + 26, cell.word, look="cell-word", most=15)
        )
    if not node.cells:
        parts.append(label_at(frame.left, y + 18, "no server", look="none"))
    lines = max(1, -(-len(node.cells) // across))
    return "".join(parts), y + ROW + (lines - 1) * (ROW - 6)


def _fitted(label: str, most: int = 13) -> str:
    """A label that fits its cell; its last word, a release's name, stays, as it is what tells two cells apart."""
    head, _, last = label.rpartition(" ")
    if len(label) <= most or not head or len(last) > 5:
        return label if len(label) <= most else f"{label[: most - 1]}…"
    return f"{head[: most - len(last) - 2]}… {last}"


def _bytes(value: float | None) -> str:
    if value is None:
        return "unknown"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if value >= size:
            return f"{text_of(value / size, Unit.NUMBER)} {unit}"
    return f"{value:.0f} B"
