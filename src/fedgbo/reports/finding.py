"""The picture of a comparison: the finding as its headline, lines with their names, the target, and rounds to target.

altair lays out everything but names and the ratio, which must not overlap lines.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import numpy as np

from fedgbo.reports.charts import (
    TEXT,
    Span,
    altair,
    colours,
    described,
    extent,
    lane,
    line_layers,
    listed,
    lowest_gap,
    round_axis,
    spans,
    spread,
    titled,
)
from fedgbo.reports.comparison import Finding, Summary, finding, summarise
from fedgbo.reports.curves import ROUNDS, Axis, points, saving, scores_of
from fedgbo.reports.load import Floats, Group
from fedgbo.reports.palette import INK, PAPER, QUIET, Palette, Point, shown_names
from fedgbo.reports.sections import Line
from fedgbo.runs.record import ACCURACY

GAP = 19.0  # pixels between two names
LETTER = 9.0  # pixels of a letter, at most
EARLY, LATE = 0.1, 0.5  # of the rounds: the y axis has all that compared lines have from then on, and other lines
LOWEST = 20.0  # per cent: an axis that would begin here or below begins at 0
SUBTITLE = 110  # letters of a line
SIZE = (640, 380)  # pixels of the panel with lines
BARS = (420, 22)  # pixels of the longest bar with its number, and of a bar and its gap
DOT = 10.0  # pixels of a dot
Rows = list[Point]


@dataclass(frozen=True)
class Frame:
    """A panel: its size in pixels, its axes, and the ends of these."""

    size: tuple[int, int]
    x: Axis
    y: Axis
    x_end: float
    y_ends: tuple[float, float]

    @property
    def across(self) -> Any:
        alt = altair()
        return alt.X(
            f"{self.x.key}:Q",
            title=self.x.title,
            scale=alt.Scale(domain=[0, self.x_end], nice=False),
            axis=round_axis() if self.x.key == ROUNDS.key else alt.Axis(labelOverlap="greedy"),
        )

    @property
    def scale(self) -> Any:
        return altair().Scale(domain=list(self.y_ends), nice=False)

    def up(self, field: str) -> Any:
        return altair().Y(f"{field}:Q", title=self.y.title, scale=self.scale)

    def wide(self, pixels: float) -> float:
        """Return so many pixels in units of the x axis."""
        return pixels / self.size[0] * self.x_end

    def tall(self, pixels: float) -> float:
        """Return so many pixels in units of the y axis."""
        return pixels / self.size[1] * (self.y_ends[1] - self.y_ends[0])

    def spans(self, rows: Rows, left: float, right: float) -> list[Span]:
        """Return the heights that lines take between left and right."""
        lines = {row["algorithm"]: [r for r in rows if r["algorithm"] == row["algorithm"]] for row in rows}
        return spans(
            (
                (np.array([r[self.x.key] for r in line]), np.array([r[self.y.key] for r in line]))
                for line in lines.values()
            ),
            left,
            right,
        )


def accuracy_chart(groups: Sequence[Group], title: str, *, wide: bool = False) -> Any:
    """Return an altair chart of mean accuracy over seeds against rounds; `wide` leaves out the panel of bars."""
    lines = [Line(group.label, group.runs) for group in groups]
    return finding_chart(lines, ROUNDS, scores_of(lines)[0], title, wide=wide)


def finding_chart(lines: Sequence[Line], x: Axis, y: Axis, title: str, *, wide: bool = False) -> Any:
    """Return an altair chart of `y` against `x`. With accuracies of FedAvg and FedGBO, it shows how they compare.

    The headline is the finding, else `title`. Two lines have bands, where there are three seeds or more.
    """
    alt = altair()
    names = shown_names([line.label for line in lines], [line.algorithm for line in lines])
    lines = [Line(name, line.runs) for name, line in zip(names, lines, strict=True)]
    rows = [row for row in points(lines, [ROUNDS, *([x] if x != ROUNDS else [])], [y]) if x.key in row and y.key in row]
    groups = [line.group() for line in lines] if y.key == ACCURACY else []
    summaries = summarise(groups) if groups else []
    found = finding(summaries) if groups else None
    two = (found.baseline.label, found.ours.label) if found else ()
    palette = Palette({line.label: line.algorithm for line in lines}, compared=two)
    frame = Frame(SIZE, x, y, max(row[x.key] for row in rows), _ends(rows, palette.bands, y))
    names_at = _names(rows, palette, frame)
    target = _target(found, rows, names_at, palette, frame) if found else []
    layers = [line_layers(rows, palette, frame.across, y, frame.scale), *target, *_named(names_at, palette, frame)]
    chart = alt.layer(*layers).properties(width=frame.size[0], height=frame.size[1])
    if found is not None and x == ROUNDS and not wide:
        chart = alt.vconcat(chart, _bars(summaries, found, palette), spacing=24)
    seeds = {line.label: len(line.runs) for line in lines}
    about = (
        [] if found and max(seeds.values()) == 1 else [described(seeds, palette.bands)]
    )  # the headline has the seeds
    said = " ".join([*([f"{title}."] if found else []), *about, *_early(rows)])
    return titled(chart, found.headline if found else title, wrap(said, SUBTITLE), names)


def _early(rows: Rows) -> list[str]:
    """Name the lines that end before others."""
    ends = {row["algorithm"]: row["round"] for row in rows}
    early = sorted(set(ends.values()) - {max(ends.values())})
    named = [(at, [name for name, end in ends.items() if end == at]) for at in early]
    return [f"{listed(names)} end{'s' if len(names) == 1 else ''} at round {at:,}." for at, names in named]


def _ends(rows: Rows, two: Sequence[str], y: Axis) -> tuple[float, float]:
    """Return the ends of the y axis. Where accuracies begin above 0, lines may begin below the panel."""
    low, high = extent([row for row in rows if row["algorithm"] in two] or rows, y)
    high = max(high, *(row[y.key] for row in rows))
    if not y.percent:
        return min(low, *(row[y.key] for row in rows)), high
    last = max(row["round"] for row in rows)
    compared = [row for row in rows if row["algorithm"] in two and row["round"] >= EARLY * last]
    seen: list[float] = [row[key] for row in compared for key in (y.key, f"{y.key}_low") if key in row]
    seen += [row[y.key] for row in rows if row["round"] >= LATE * last]
    floor = 10 * (min(seen) // 10) if min(seen) > LOWEST else 0.0
    top = min(100.0, 5 * np.ceil(high / 5 + 0.2))
    return (floor if floor < top - 10 else max(0.0, top - 20)), float(top)


def _names(rows: Rows, palette: Palette, frame: Frame) -> Rows:
    """Return where the names at the ends of lines are, from the best to the worst, clear of lines that go on."""
    low, high = frame.y_ends
    ends = {row["algorithm"]: row for row in rows}  # the last point of each
    labels = []
    for place in sorted({row[frame.x.key] for row in ends.values()}):
        here = [row for row in ends.values() if row[frame.x.key] == place]
        values = np.array([min(max(row[frame.y.key], low), high) for row in here])
        room = frame.wide(LETTER * max(len(row["algorithm"]) for row in here) + 14)
        heights = _heights(values, frame.spans(rows, place, place + room), frame)
        for row, value, at in zip(here, values.tolist(), heights.tolist(), strict=True):
            name = row["algorithm"]
            weight = 700 if palette.algorithms[name] in ("fedgbo", "fedavg") else 400
            labels.append({"algorithm": name, frame.x.key: place, "end": value, "at": at, "weight": weight})
    return labels


def _named(labels: Rows, palette: Palette, frame: Frame) -> list[Any]:
    alt = altair()
    base = alt.Chart(alt.Data(values=labels)).encode(x=frame.across, color=colours(palette))
    leader = base.mark_rule(x2Offset=11, xOffset=2, strokeWidth=1, opacity=0.7)
    leader = leader.encode(y=frame.up("end"), x2=frame.x.key, y2="at:Q")
    made = [leader]
    for weight in sorted({label["weight"] for label in labels}):
        chosen = base.transform_filter(f"datum.weight === {weight}").encode(y=frame.up("at"), text="algorithm:N")
        shared = {"align": "left", "dx": 14, "fontSize": TEXT + 1, "fontWeight": weight}
        made += [
            chosen.mark_text(**shared, stroke=PAPER, strokeWidth=3, strokeJoin="round"),
            chosen.mark_text(**shared),
        ]
    return made


def _heights(values: Floats, taken: Sequence[Span], frame: Frame) -> Floats:
    """Return the heights of names that stand for these values, so far apart that they do not overlap."""
    heights, gap = np.empty_like(values), frame.tall(GAP)
    lanes = [lane(value, taken, frame.y_ends[0] - gap, frame.y_ends[1] + gap) for value in values.tolist()]
    for low, high in set(lanes):
        inside = np.array([one == (low, high) for one in lanes])
        heights[inside] = spread(values[inside], gap, low + gap, high - gap)
    return heights


def _target(found: Finding, rows: Rows, names: Rows, palette: Palette, frame: Frame) -> list[Any]:
    """The dashed line at FedAvg's best accuracy, both crossings, and the ratio between them."""
    alt = altair()
    goal, text = found.baseline.accuracy / frame.y.scale, f"FedAvg's best: {found.goal}"
    start = _clear(goal, LETTER * len(text), rows, names, frame)
    dashed = alt.Chart(alt.Data(values=[{"goal": goal, frame.x.key: start, "text": text}])).encode(y=frame.up("goal"))
    rule = dashed.mark_rule(strokeDash=[5, 4], color=INK, strokeWidth=1)
    made = [rule, *_halo(dashed.encode(x=frame.across, text="text:N"), align="left", dx=6, dy=-8, color=INK)]
    at = _crossings(found, rows)
    if len(at) < 2:
        return made
    theirs, ours = at[found.baseline.label][frame.x.key], at[found.ours.label][frame.x.key]
    left, right = sorted((theirs, ours))
    together = right - left < frame.wide(DOT)  # the lower dot is then larger, so that both are seen
    dots = [
        {
            "algorithm": label,
            frame.x.key: row[frame.x.key],
            "value": row[frame.y.key],
            "floor": frame.y_ends[0],
            "size": 240 if together and label == found.baseline.label else 80,
        }
        for label, row in at.items()
    ]
    marks = alt.Chart(alt.Data(values=dots)).encode(x=frame.across, y=frame.up("value"), color=colours(palette))
    made.append(marks.mark_rule(strokeWidth=1, strokeDash=[2, 3]).encode(y2="floor:Q"))
    dot = marks.mark_point(filled=True, opacity=1, stroke=PAPER, strokeWidth=1.5)
    made.append(dot.encode(size=alt.Size("size:Q", scale=None)))
    return (
        made if left == right or not left else made + _ratio(saving(frame.x, theirs / ours), left, right, rows, frame)
    )


def _clear(height: float, width: float, rows: Rows, names: Rows, frame: Frame) -> float:
    """Return the first place for a text of this width above `height` that no line or name crosses; without one, 0."""
    low, high = height + frame.tall(2), height + frame.tall(GAP)
    places = np.linspace(0.0, max(0.0, frame.x_end - frame.wide(width)), 41).tolist()

    def free(left: float) -> bool:
        right = left + frame.wide(width)
        taken = frame.spans(rows, left, right)
        for at, first, name in ((one["at"], one[frame.x.key], one["algorithm"]) for one in names):
            if left < first + frame.wide(LETTER * len(name) + 14) and first < right:
                taken.append((at - frame.tall(GAP / 2), at + frame.tall(GAP / 2)))
        return all(top < low or bottom > high for bottom, top in taken)

    return next((left for left in places if free(left)), 0.0)


def _ratio(said: str, left: float, right: float, rows: Rows, frame: Frame) -> list[Any]:
    """An arrow between two crossings and its text, above it or, if it is too short, on its left; clear of lines."""
    alt = altair()
    width = frame.wide(LETTER * len(said) + 12)
    beside = right - left < width <= left
    taken = frame.spans(rows, left - width if beside else left, right)
    base = lowest_gap(taken, frame.tall(28 if beside else 44), *frame.y_ends) + frame.tall(14)
    between = {frame.x.key: left, "to": right, "base": base, "text": said}
    between["middle"] = left if beside else (left + right) / 2
    arrow = alt.Chart(alt.Data(values=[between])).encode(y=frame.up("base"))
    made = [arrow.mark_rule(color=INK, strokeWidth=1.2).encode(x=frame.across, x2="to:Q")]
    for end, turn, inwards in ((left, 270, 4), (right, 90, -4)):
        head = alt.Chart(alt.Data(values=[{frame.x.key: end, "base": base}])).encode(x=frame.across, y=frame.up("base"))
        made.append(
            head.mark_point(shape="triangle", filled=True, size=45, color=INK, opacity=1, angle=turn, xOffset=inwards)
        )
    middle = alt.X("middle:Q", scale=frame.across.to_dict()["scale"])
    place = {"align": "right", "dx": -8} if beside else {"dy": -11}
    return made + _halo(arrow.encode(x=middle, text="text:N"), **place, color=INK, fontWeight=700, fontSize=TEXT + 2)


def _halo(chart: Any, **style: Any) -> list[Any]:
    """Text over lines: once as a broad outline in the colour of the paper, then itself."""
    style = {"fontSize": TEXT} | style
    outline = {**style, "stroke": PAPER, "strokeWidth": 5, "strokeJoin": "round"}
    return [chart.mark_text(**outline), chart.mark_text(**style)]


def _crossings(found: Finding, rows: Rows) -> Mapping[str, Point]:
    """Return by label the point at which each of the two has FedAvg's best accuracy."""
    wanted = {found.baseline.label: found.baseline.best, found.ours.label: found.ours.match}
    return {
        label: row
        for label, effort in wanted.items()
        for row in rows
        if effort is not None and (row["algorithm"], row["round"]) == (label, effort.round)
    }


def rounds_to_target(summaries: Sequence[Summary], found: Finding) -> Rows:
    """Return each algorithm's rounds to FedAvg's best accuracy, the fewest first; those that never get there last."""
    rows: Rows = []
    for row in summaries:
        effort = row.best if row.label == found.baseline.label else row.match
        text = "not reached" if effort is None else f"{effort.round:,}"
        rows.append(
            {"algorithm": row.label, "rounds": effort.round if effort else 0, "text": text, "there": effort is not None}
        )
    return sorted(rows, key=lambda row: (not row["there"], row["rounds"]))


def bar_layers(rows: Sequence[Point], colour: Any, quiet: str, ink: str, room: float = 0.0) -> Any:
    """Return an altair chart of rounds to target: a bar for each algorithm, with its number.

    Names get at least so many pixels of room.
    """
    alt = altair()
    names = alt.Y(
        "algorithm:N", sort=[row["algorithm"] for row in rows], title=None,
        axis=alt.Axis(ticks=False, domain=False, grid=False, labelPadding=6, labelLimit=360, minExtent=room),
    )  # fmt: skip
    longest = max(row["rounds"] for row in rows) or 1
    across = alt.X("rounds:Q", axis=None, scale=alt.Scale(domain=[0, 1.3 * longest], nice=False))
    base = alt.Chart(alt.Data(values=list(rows))).encode(x=across, y=names)
    bars = base.mark_bar(height={"band": 0.62}).encode(color=colour)
    shade = alt.condition("datum.there", alt.value(ink), alt.value(quiet))
    return bars + base.mark_text(align="left", dx=5, fontSize=TEXT).encode(text="text:N", color=shade)


def _bars(summaries: Sequence[Summary], found: Finding, palette: Palette) -> Any:
    alt = altair()
    rows = rounds_to_target(summaries, found)
    title = alt.Title(f"Rounds to {found.goal}", fontSize=TEXT + 1, anchor="start", offset=8)
    room = LETTER * max(len(row["algorithm"]) for row in rows)
    chart = bar_layers(rows, colours(palette), QUIET, INK, room)
    return chart.properties(width=BARS[0], height=BARS[1] * len(rows), title=title, view=alt.ViewConfig(stroke=None))
