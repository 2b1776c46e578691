"""Plots drawn on the server: pure functions from numbers to inline SVG with a table behind it. Looks are classes of plots.css.

    from web.plots import Axis, Limit, Series, Unit, lines
    plot = lines("p99", "Under its limit all day.", [Series("r3", [(0, 0.02), (60, None)], "candidate")],
                 x=Axis("time", Unit.DURATION), y=Axis("p99", Unit.DURATION), limits=[Limit(0.05, "50 ms")])

A page adds `plots.css` and `plots.js` and includes `{% include "_parts/plot.html" with plot=plot %}`. Missing values are None: a gap.
"""

from web.plots.axes import Mark
from web.plots.bands import Stretch, bands
from web.plots.curves import (
    LoadPoint,
    PlannedStep,
    rate_latency,
    staircase,
)
from web.plots.forest import Estimate, forest
from web.plots.lines import Axis, Kind, Limit, Panel, Series, lines, panels
from web.plots.markup import Markup, thinned
from web.plots.plot import Key, Plot, empty
from web.plots.scales import Scale, Unit, linear, logarithmic, text_of
from web.plots.sparkline import sparkline

__all__ = [
    "Axis", "Estimate", "Key", "Kind", "Limit", "LoadPoint", "Mark", "Markup", "Panel",
    "PlannedStep", "Plot", "Scale", "Series", "Stretch", "Unit", "bands", "empty",
    "forest", "linear", "lines", "logarithmic", "panels", "rate_latency", "sparkline",
    "staircase", "text_of", "thinned",
]  # fmt: skip
