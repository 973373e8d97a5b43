"""A picture of each result, as PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {"EWR": "#0072b2", "JFK": "#d55e00", "LGA": "#009e73"}
"""Told apart also by who sees no red or green."""

SCALE_MINUTES = 60
"""The end of the colours' scale."""

NEW_YORK = timezone(timedelta(hours=-5))
"""Its standard time, all year."""


def _figure(rows: int, height: float, title: str, share_dates: bool = False) -> tuple[Figure, Sequence[Any]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, height), layout="constrained")
    figure.suptitle(title, fontsize=13)
    axes = figure.subplots(rows, 1, squeeze=False, sharex=share_dates)
    return figure, [row[0] for row in axes]


def delays(path: Path, windows: Sequence[tuple[str, int, int, int]]) -> None:
    """Daily means per airport, and the mean by hour of day and month.

    Args:
        windows: (airport, start in ms since 1970, departed, delay minutes).
    """
    figure, (daily, hours) = _figure(2, 8, "Departure delays from New York, 2013, as the streaming windows count them")
    for airport, colour in COLOURS.items():
        days: dict[date, list[int]] = {}
        for origin, start_ms, departed, minutes in windows:
            if origin == airport:
                totals = days.setdefault(_local(start_ms).date(), [0, 0])
                totals[0] += departed
                totals[1] += minutes
        known = sorted((day, minutes / departed) for day, (departed, minutes) in days.items() if departed >= 20)
        daily.plot([day for day, _ in known], [mean for _, mean in known], color=colour, linewidth=1, label=airport)
    daily.set_ylabel("mean delay of a day (minutes)")
    daily.legend(loc="upper left", frameon=False, ncols=3)
    daily.grid(alpha=0.3)
    cells: dict[tuple[int, int], list[int]] = {}
    for _, start_ms, departed, minutes in windows:
        start = _local(start_ms)
        totals = cells.setdefault((start.hour, start.month), [0, 0])
        totals[0] += departed
        totals[1] += minutes
    nothing = float("nan")
    table = [
        [_mean(cells.get((hour, month)), at_least=30, otherwise=nothing) for month in range(1, 13)]
        for hour in range(24)
    ]
    # Past midnight only the delayed are left, hours late: the scale is for the day.
    image = hours.imshow(table, aspect="auto", cmap="cividis", origin="lower", vmin=0, vmax=SCALE_MINUTES)
    hours.set_xticks(range(12), ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"])
    hours.set_ylabel("hour of departure (EST)")
    figure.colorbar(image, ax=hours, label="mean delay (minutes)", extend="both")
    figure.savefig(path, dpi=110)


def lake(path: Path, rows: Mapping[str, int], before: Mapping[str, int], after: Mapping[str, int]) -> None:
    """Rows of each date, and its files before and after compaction.

    Args:
        rows, before, after: by date, as 2013-01-31.
    """
    figure, (upper, lower) = _figure(
        2, 6.5, "The log of flights as a Parquet lake, partitioned by date", share_dates=True
    )
    days = [date.fromisoformat(day) for day in sorted(rows)]
    upper.bar(days, [rows[day] for day in sorted(rows)], width=1.0, color="#0072b2")
    upper.set_ylabel("rows of a date")
    lower.step(
        days, [before.get(day, 0) for day in sorted(rows)], where="mid", color="#d55e00", label="before compaction"
    )
    lower.step(days, [after.get(day, 0) for day in sorted(rows)], where="mid", color="#009e73", label="after")
    lower.set_ylabel("files of a date")
    lower.yaxis.get_major_locator().set_params(integer=True)
    lower.set_ylim(bottom=0)
    lower.legend(loc="upper left", frameon=False, ncols=2)
    figure.savefig(path, dpi=110)


def weather(path: Path, classes: Sequence[tuple[str, str, int, int, int]]) -> None:
    """Mean delay by kind of weather and airport.

    Args:
        classes: (kind, airport, flights, departed, delay minutes).
    """
    figure, (means, counts) = _figure(
        2, 7, "Departure delays from New York, 2013, by the weather of the scheduled hour"
    )
    kinds = sorted({row[0] for row in classes}, key=lambda kind: -_total_mean(classes, kind))
    width = 0.8 / len(COLOURS)
    for place, (airport, colour) in enumerate(COLOURS.items()):
        found = {row[0]: row for row in classes if row[1] == airport}
        at = [index + (place - 1) * width for index in range(len(kinds))]
        heights = [_mean(list(found[kind][3:]) if kind in found else None) for kind in kinds]
        means.bar(at, heights, width=width * 0.95, color=colour, label=airport)
        counts.bar(at, [found[kind][2] if kind in found else 0 for kind in kinds], width=width * 0.95, color=colour)
    for axes, label in ((means, "mean delay (minutes)"), (counts, "flights (logarithmic)")):
        axes.set_xticks(range(len(kinds)), kinds)
        axes.set_ylabel(label)
        axes.grid(axis="y", alpha=0.3)
    counts.set_yscale("log")
    means.legend(frameon=False)
    figure.savefig(path, dpi=110)


def replay(path: Path, means: Mapping[str, Mapping[date, float]], switched: date, fixed_at: date) -> None:
    """Daily means as blue and as green have them, and when what was read.

    Args:
        means: version -> day -> mean delay of all airports.
        switched: the day up to which the log was read when green took over.
        fixed_at: the same when green began.
    """
    figure, (axes,) = _figure(1, 5, "A bug fixed by replay: blue takes clock times for numbers, green computes minutes")
    for version, colour in (("blue", "#0072b2"), ("green", "#009e73")):
        days = sorted(means[version])
        axes.plot(days, [means[version][day] for day in days], color=colour, linewidth=1.2, label=version)
    axes.axvline(fixed_at, color="#666666", linestyle=":", linewidth=1)
    axes.axvline(switched, color="#000000", linestyle="--", linewidth=1)
    top = axes.get_ylim()[1]
    axes.text(fixed_at, top, "green begins at offset 0 ", ha="right", va="top", fontsize=9)
    axes.text(switched, top, " green is read from here on", ha="left", va="top", fontsize=9)
    axes.set_ylabel("mean delay of a day (minutes)")
    axes.legend(loc="lower left", frameon=False, ncols=2)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def _local(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000, NEW_YORK)


def _mean(totals: Sequence[int] | None, at_least: int = 1, otherwise: float = 0.0) -> float:
    """Of (departed, minutes)."""
    return totals[1] / totals[0] if totals and totals[0] >= at_least else otherwise


def _total_mean(classes: Sequence[tuple[str, str, int, int, int]], kind: str) -> float:
    departed = sum(row[3] for row in classes if row[0] == kind)
    return sum(row[4] or 0 for row in classes if row[0] == kind) / max(departed, 1)
