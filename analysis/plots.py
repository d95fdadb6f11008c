"""The figures of a run: SVG and PNG files, and SVG to embed in the page.

Figures are drawn in the light palette. In the embedded copy each colour becomes a CSS
variable of the same name, so the page can switch it; the files keep the light colours on
white. Series differ by line style and marker as well as by colour. Every figure is bounded:
what does not fit is binned in SQL, and the caption says how. The same evidence gives the same
SVG bytes (ids are salted with the figure's name, no date).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from analysis.exposure import in_flight_counts, overlap_counts
from analysis.store import Evidence
from analysis.text import milliseconds
from analysis.timing import bin_width_ns, phases, quantiles, rates

PALETTE = {
    # name: (light, dark). Okabe and Ito's colours (https://jfly.uni-koeln.de/color/), darkened or
    # lightened until they stand at 4.5:1 on the page's background.
    "ink": ("#1f2328", "#e6e9ec"),
    "muted": ("#59636e", "#9ba5b0"),
    "grid": ("#dce1e6", "#363d46"),
    "accepted": ("#0067a3", "#5cb8ee"),
    "rejected": ("#b85100", "#f0974a"),
    "failed": ("#9c3a74", "#e391c0"),
    "unknown": ("#7a6400", "#dcc04a"),
    "received": ("#00735a", "#3cc6a0"),
    "fault": ("#6f42c1", "#b392f0"),
}
PNG_DPI = 110
_WIDTH_IN = 5.6  # two side by side on a wide page, one on a phone: text stays readable
_STYLE: dict[Any, object] = {  # matplotlib types the keys as one long Literal
    "svg.fonttype": "none",
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.edgecolor": PALETTE["muted"][0],
    "axes.labelcolor": PALETTE["ink"][0],
    "axes.titlecolor": PALETTE["ink"][0],
    "text.color": PALETTE["ink"][0],
    "xtick.color": PALETTE["muted"][0],
    "ytick.color": PALETTE["muted"][0],
    "xtick.labelcolor": PALETTE["ink"][0],
    "ytick.labelcolor": PALETTE["ink"][0],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": PALETTE["grid"][0],
    "grid.linewidth": 0.8,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "legend.handlelength": 2.6,
    "legend.borderaxespad": 0.1,
    "legend.columnspacing": 1.4,
    "path.simplify": True,
}
_LOOKS: dict[str, tuple[str, str, str]] = {
    # series: colour, line style, marker
    "sent": ("muted", "--", ""),
    "received": ("received", "-", ""),
    "accepted": ("accepted", "-", "o"),
    "rejected": ("rejected", "--", "s"),
    "failed": ("failed", ":", "^"),
    "unknown": ("unknown", "-.", "D"),
    "all": ("ink", "-", ""),
    "processed": ("accepted", "-", "o"),
    "duplicate": ("rejected", "--", "s"),
    "visible": ("accepted", "-", ""),
    "in flight": ("rejected", "--", ""),
    "dead letters": ("failed", ":", ""),
    "median": ("accepted", "-", ""),
    "slowest": ("rejected", "--", ""),
}
_MOST_SAMPLES = 300
_MOST_BARS = 24
_ECDF_POINTS = 120


@dataclass(frozen=True, slots=True)
class Plot:
    name: str  # plots/<name>.svg and .png
    title: str
    caption: str  # what to look for, in one sentence, and how the data were binned
    svg: str  # to embed: colours are CSS variables, ids are unique to the figure


def render_plots(evidence: Evidence, run_dir: Path) -> list[Plot]:
    """Write ``plots/*.svg`` and ``*.png``; figures that have nothing to show are left out."""
    folder = run_dir / "plots"
    folder.mkdir(exist_ok=True)
    plots = []
    with _own_style():
        for draw in (_over_time, _queue_depth, _latencies, _overlap, _send_lag):
            drawn = draw(evidence)
            if drawn is not None:
                plots.append(_save(*drawn, folder))
    return plots


_Drawn = tuple[Figure, str, str, str]  # figure, name, title, caption


def _over_time(evidence: Evidence) -> _Drawn | None:
    spans = phases(evidence)
    if not spans:
        return None
    origin = spans[0][0]
    names = [
        row["name"] for row in evidence.rows("SELECT DISTINCT name FROM faults ORDER BY name DESC")
    ]
    labels = ("messages/s", "writes/s", *(("faults",) if names else ()))
    height_in = 4.3 + (0.7 + 0.22 * len(names) if names else 0)
    figure, (top, bottom, *marked) = _timed_figure(len(spans), labels, height_in)
    widths = []
    for column, (first, last) in enumerate(spans):
        data = rates(evidence, first, last)
        bin_s = data.bin_ns / 1e9
        widths.append(f"{milliseconds(data.bin_ns)} ms")
        for rate in data.series:
            axes = (top if rate.name in ("sent", "received") else bottom)[column]
            start_s = (first - origin) / 1e9 + bin_s / 2
            times = [start_s + index * bin_s for index in range(len(rate.counts))]
            _line(axes, rate.name, times, [count / bin_s for count in rate.counts])
        for row in marked:
            _mark_faults(evidence, row[column], names, (first, last, data.bin_ns), origin)
    for row in (top, bottom):
        row[0].set_ylim(bottom=0)
        _legend(row[0])
    return (
        figure,
        "over-time",
        "Sends, deliveries and write decisions over time",
        "Accepted writes should stop at one per order while rejected ones follow the copies; a late"
        f" burst is a redelivery. Counted in bins of {' and '.join(widths)}.{_rest(spans)}"
        + (" Below, each kind of fault on a line of its own, marked where it fired." * bool(names)),
    )


def _mark_faults(
    evidence: Evidence, axes: Axes, names: list[str], span: tuple[int, int, int], origin: int
) -> None:
    """A line for each kind of fault, with a mark in each bin in which it fired."""
    first, last, bin_ns = span
    rows = evidence.rows(
        'SELECT DISTINCT name, ("at" - $first) // $bin_ns AS bin FROM faults'
        ' WHERE "at" BETWEEN $first AND $last ORDER BY name, bin',
        {"first": first, "last": last, "bin_ns": bin_ns},
    )
    axes.plot(
        [(first + row["bin"] * bin_ns + bin_ns / 2 - origin) / 1e9 for row in rows],
        [names.index(row["name"]) for row in rows],
        linestyle="none",
        marker="|",
        markersize=8,
        color=PALETTE["fault"][0],
    )
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(-0.6, len(names) - 0.4)


def _queue_depth(evidence: Evidence) -> _Drawn | None:
    (span,) = evidence.rows(
        'SELECT min("at") AS first, max("at") AS last, count(DISTINCT "at") AS n FROM queue_samples'
    )
    spans = phases(evidence)
    if not span["n"] or not spans:
        return None
    origin = spans[0][0]
    every_ns = (span["last"] - span["first"]) // _MOST_SAMPLES + 1
    binned = span["n"] > _MOST_SAMPLES
    samples = evidence.rows(
        'SELECT queue, max("at") AS moment, max(visible + delayed) AS visible,'
        " max(in_flight) AS in_flight FROM queue_samples"
        ' GROUP BY queue, CASE WHEN $binned THEN ("at" - $first) // $every ELSE "at" END'
        " ORDER BY moment",
        {"first": span["first"], "every": every_ns, "binned": binned},
    )
    figure, (row,) = _timed_figure(len(spans), ("messages",), 3.1)
    for column, axes in enumerate(row):
        for name, queue, fields in (
            ("visible", "queue", ("visible",)),
            ("in flight", "queue", ("in_flight",)),
            # A dead letter that was looked at is in flight for a while.
            ("dead letters", "dlq", ("visible", "in_flight")),
        ):
            points = [sample for sample in samples if sample["queue"] == queue]
            times = [(point["moment"] - origin) / 1e9 for point in points]
            values = [sum(point[field] for field in fields) for point in points]
            _line(axes, name, times, values)
        if len(spans) > 1:
            split = (spans[0][1] - origin) / 1e9
            start, end = ((span[name] - origin) / 1e9 for name in ("first", "last"))
            # The last sample may be older than the split; an axis needs a width.
            rest = (split, end if end > split else split + 1)
            axes.set_xlim(*((start, split) if column == 0 else rest))
    row[0].set_ylim(bottom=0)
    _legend(row[0])
    how = f" The highest sample of every {every_ns / 1e9:.2g} s is drawn." if binned else ""
    return (
        figure,
        "queue-depth",
        "Queue depth",
        "Visible and in flight should both end at zero; what stays in flight waits for its"
        f" visibility timeout. The queue's own counters, approximate.{how}{_rest(spans)}",
    )


def _rest(spans: Sequence[tuple[int, int]]) -> str:
    if len(spans) == 1:
        return ""
    return " On the right, at another scale, what followed when every message had been received."


def _latencies(evidence: Evidence) -> _Drawn | None:
    levels = [index / _ECDF_POINTS for index in range(_ECDF_POINTS + 1)]
    rows = quantiles(evidence, levels, ("end to end", "handler", "write"))
    series = {(row["name"], row["split"]): row for row in rows}
    stages = [
        (name, [split for split in splits if (name, split) in series])
        for name, splits in (
            ("end to end", ("processed", "duplicate", "all")),
            ("handler", ("processed", "duplicate", "failed")),
            ("write", ("accepted", "rejected", "failed")),
        )
    ]
    stages = [(name, splits) for name, splits in stages if splits]
    if not stages:
        return None
    figure, panels = _figure(len(stages), 1.1 + 1.6 * len(stages))
    for axes, (name, splits) in zip(panels, stages, strict=True):
        for split in splits:
            if split == "all" and len(splits) > 1:
                continue
            row = series[name, split]
            # A log axis has no place for 0; a microsecond is below anything measured here.
            values = [max(point, 1_000) / 1e6 for point in row["quantiles"]]
            _line(axes, split, values, levels, label=f"{split} ({row['n']:,})")
        axes.set_xscale("log")
        axes.set_ylim(0, 1.02)
        axes.set_yticks([0, 0.5, 1], ["0", "50 %", "100 %"])
        axes.set_title(name, fontweight="bold", pad=20)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        _legend(axes)
    panels[-1].set_xlabel("milliseconds, log scale")
    loop = (
        ""
        if evidence.run.plan.rate_per_s is not None
        else (" End to end counts from the send: at rate max the load is closed-loop.")
    )
    return (
        figure,
        "latency",
        "Latency distributions",
        "Share of values at or below a time: a curve further left is faster, a long flat top is a"
        f" tail; in brackets the number of values.{loop} {_ECDF_POINTS} exact quantiles a curve.",
    )


def _overlap(evidence: Evidence) -> _Drawn | None:
    pairs, in_flight = overlap_counts(evidence), in_flight_counts(evidence)
    if not pairs:
        return None
    figure, (left, right) = _figure(2, 4.3, sharex=False)
    for axes, counts, xlabel in (
        (left, pairs, "overlapping pairs of one order"),
        (right, in_flight, "invocations of one order with calls open at once, at most"),
    ):
        labels, heights = _bars(counts)
        bars = axes.bar(labels, heights, color=PALETTE["accepted"][0], width=0.72)
        if labels and labels[0] == "0":
            bars[0].set(facecolor="none", edgecolor=PALETTE["accepted"][0], hatch="////")
        axes.bar_label(bars, [f"{height:,}" if height else "" for height in heights], fontsize=8.5)
        axes.set_xlabel(xlabel)
        axes.set_ylabel("orders")
        axes.margins(y=0.15)
        axes.tick_params(axis="x", labelsize=10 if len(labels) <= 14 else 7.5)
        axes.grid(visible=False, axis="x")
        axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    return (
        figure,
        "overlap",
        "Overlap per order",
        "Orders with no overlapping pair (hatched) showed nothing about races; the more of the"
        " others, the more the verdict rests on. Orders with two or more messages.",
    )


def _send_lag(evidence: Evidence) -> _Drawn | None:
    if evidence.run.plan.rate_per_s is None:
        return None
    (span,) = evidence.rows(
        "SELECT min(intended_at) AS first, max(intended_at) AS last FROM messages"
        " WHERE sent_at IS NOT NULL"
    )
    if span["first"] is None:
        return None
    bin_ns = bin_width_ns(span["last"] - span["first"])
    rows = evidence.rows(
        "SELECT (intended_at - $first) // $bin_ns AS bin,"
        " quantile_disc(sent_at - intended_at, 0.5) AS median,"
        " max(sent_at - intended_at) AS slowest"
        " FROM messages WHERE sent_at IS NOT NULL GROUP BY bin ORDER BY bin",
        {"first": span["first"], "bin_ns": bin_ns},
    )
    figure, (axes,) = _figure(1, 3.1)
    times = [(row["bin"] + 0.5) * bin_ns / 1e9 for row in rows]
    for name in ("median", "slowest"):
        _line(axes, name, times, [row[name] / 1e6 for row in rows])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("intended send time, seconds")
    axes.set_ylabel("lag, milliseconds")
    _legend(axes)
    return (
        figure,
        "send-lag",
        "Send lag",
        "The driver kept its schedule when this stays flat; a climbing line means the intended rate"
        f" was not reached. Bins of {milliseconds(bin_ns)} ms.",
    )


def _bars(counts: dict[int, int]) -> tuple[list[str], list[int]]:
    """Bars for 0, 1, 2, ...; neighbours are put together when there would be too many."""
    if not counts:
        return [], []
    step = max(counts) // _MOST_BARS + 1
    first = min(counts)
    if step == 1:
        numbers = range(first, max(counts) + 1)
        return [str(number) for number in numbers], [counts.get(number, 0) for number in numbers]
    labels, heights = [], []
    if first == 0:  # never put together with others: it means "showed nothing"
        labels, heights = ["0"], [counts[0]]
    for start in range(1, max(counts) + 1, step):
        labels.append(f"{start}-{start + step - 1}")
        heights.append(sum(counts.get(number, 0) for number in range(start, start + step)))
    return labels, heights


def _timed_figure(
    columns: int, labels: Sequence[str], height_in: float
) -> tuple[Figure, list[list[Axes]]]:
    """Rows of time series; a second column shows the later part at a scale of its own."""
    figure = Figure(figsize=(_WIDTH_IN, height_in), layout="constrained")
    axes = figure.subplots(
        len(labels),
        columns,
        sharex="col",
        sharey="row",
        squeeze=False,
        width_ratios=[2.4, 1][:columns],
    )
    for row, label in zip(axes, labels, strict=True):
        row[0].set_ylabel(label)
        for later in row[1:]:
            later.spines.left.set(linestyle=":", visible=True)
            later.tick_params(axis="y", length=0)
            later.xaxis.set_major_locator(MaxNLocator(3, prune="lower"))
    figure.supxlabel("seconds since the first send", fontsize=10)
    return figure, [list(row) for row in axes]


def _figure(rows: int, height_in: float, *, sharex: bool = True) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(_WIDTH_IN, height_in), layout="constrained")
    axes = figure.subplots(rows, 1, sharex=sharex, squeeze=False)
    return figure, list(axes[:, 0])


def _line(
    axes: Axes,
    name: str,
    x: Sequence[float],
    y: Sequence[float],
    label: str | None = None,
) -> None:
    colour, style, marker = _LOOKS[name]
    axes.plot(
        x,
        y,
        color=PALETTE[colour][0],
        linestyle=style,
        marker=marker,
        markevery=max(1, len(x) // 9),
        drawstyle="default" if label is None else "steps-pre",
        label=label or name,
    )


def _legend(axes: Axes) -> None:
    """Above the axes, where it hides nothing."""
    if not axes.get_legend_handles_labels()[0]:
        return  # a handler that made no call has none to draw
    legend = axes.legend(loc="lower left", bbox_to_anchor=(0, 1.01), ncols=4)
    legend.set_in_layout(bool(not axes.get_title(loc="left")))


@contextmanager
def _own_style() -> Iterator[None]:
    """Our settings, whatever the user's own matplotlib style is; put back afterwards."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def _save(figure: Figure, name: str, title: str, caption: str, folder: Path) -> Plot:
    text = StringIO()
    matplotlib.rcParams["svg.hashsalt"] = name
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Title": title})
    svg = _COORDINATES.sub(lambda found: _DECIMALS.sub(r"\1", found[0]), text.getvalue())
    (folder / f"{name}.svg").write_text(svg, encoding="utf-8")
    image = BytesIO()
    figure.savefig(image, format="png", dpi=PNG_DPI, metadata={"Software": None, "Title": title})
    (folder / f"{name}.png").write_bytes(image.getvalue())
    return Plot(name, title, caption, _embedded(svg, name, f"{title}. {caption}"))


_COORDINATES = re.compile(r' (?:d|x|y)="[^"]*"')
_DECIMALS = re.compile(r"(\.\d\d)\d+")  # a hundredth of a point is finer than any screen
_BACKGROUND = re.compile(r'<g id="patch_\d+">\s*<path [^>]*style="fill: #ffffff[^>]*/>\s*</g>')


def _embedded(svg: str, name: str, label: str) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<title>.*?</title>", "", svg, flags=re.DOTALL)
    svg = svg.replace("xlink:href", "href")
    svg = _BACKGROUND.sub("", svg)
    svg = re.sub(
        r"<svg [^>]*?(viewBox=\"[^\"]*\")[^>]*>",
        rf'<svg \1 role="img" aria-label="{label}">',
        svg,
        count=1,
    )
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg)
    svg = re.sub(r'id="([^"]*)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\1{name}-", svg)
    for variable, (light, _) in PALETTE.items():
        svg = svg.replace(light, f"var(--{variable})")
    return svg
