"""Pictures of the bench: our speed beside the best other framework and the machine's limit; and how cost grows."""

from collections.abc import Sequence
from typing import Any

from fedgbo.bench.growth import Growth
from fedgbo.bench.peers import Peer
from fedgbo.bench.report import Row
from fedgbo.reports.charts import altair, titled
from fedgbo.reports.palette import OTHERS

OURS, PEER, LIMIT = "fedgbo", "best other framework", "matrix product's rate"


def speed_chart(rows: Sequence[Row], peers: Sequence[Peer]) -> Any:
    """Return a chart of FedAvg's local steps per second on each task, as multiples of the plain loop's."""
    alt = altair()
    points = []
    for row in rows:
        if row.algorithm != "fedavg":
            continue
        points.append({"task": row.task, "who": OURS, "times": row.ratio, "name": OURS})
        theirs = [peer for peer in peers if peer.task == row.task]
        if theirs:
            best = max(theirs, key=lambda peer: peer.steps_per_second)
            times = best.steps_per_second / row.plain_steps_per_second
            points.append({"task": row.task, "who": PEER, "times": times, "name": best.framework})
        if row.limit:
            points.append({"task": row.task, "who": LIMIT, "times": row.ratio / row.limit, "name": LIMIT})
    order = [point["task"] for point in points if point["who"] == OURS]
    names = [OURS, PEER, LIMIT]
    base = alt.Chart(alt.Data(values=points)).encode(
        x=alt.X(
            "times:Q", scale=alt.Scale(type="log"), title="local steps per second, in multiples of the plain loop's"
        ),
        y=alt.Y("task:N", sort=order, title=None),
    )
    marks = base.mark_point(filled=True, size=110, opacity=1).encode(
        color=alt.Color("who:N", scale=alt.Scale(domain=names, range=list(OTHERS[:3])), title=None),
        shape=alt.Shape(
            "who:N", scale=alt.Scale(domain=names, range=["circle", "square", "triangle-right"]), title=None
        ),
    )
    label = base.mark_text(dy=-11, fontSize=10).encode(text="name:N").transform_filter(f"datum.who == '{PEER}'")
    one = alt.Chart(alt.Data(values=[{"times": 1}])).mark_rule(strokeDash=[4, 3]).encode(x="times:Q")
    return titled((one + marks + label).properties(width=560, height=34 * max(1, len(order))), "Speed of FedAvg",
                  "one run of fedgbo bench; dashed: the plain loop, with one thread or all cores")  # fmt: skip


def growth_chart(grown: Sequence[Growth]) -> Any:
    """Return log-log charts of a round's time, one for each axis, with a line of slope one."""
    alt = altair()
    charts = []
    for axis in grown:
        measured = [
            {"value": value, "ms": ms, "what": "measured"}
            for value, ms in zip(axis.values, axis.milliseconds, strict=True)
        ]
        first, last = axis.values[-1] / axis.values[0], axis.milliseconds[-1]
        linear = [
            {"value": axis.values[0], "ms": last / first, "what": "linear"},
            {"value": axis.values[-1], "ms": last, "what": "linear"},
        ]
        x = alt.X("value:Q", scale=alt.Scale(type="log"), title=axis.axis)
        y = alt.Y("ms:Q", scale=alt.Scale(type="log"), title="ms a round")
        line = alt.Chart(alt.Data(values=linear)).mark_line(strokeDash=[4, 3], color="grey").encode(x=x, y=y)
        dots = alt.Chart(alt.Data(values=measured)).mark_line(point=True, color=OTHERS[0]).encode(x=x, y=y)
        charts.append((line + dots).properties(width=270, height=180, title=f"grows like n^{axis.exponent:.2f}"))
    return titled(alt.concat(*charts, columns=2), "How the cost of a round grows", "dashed: linear")
