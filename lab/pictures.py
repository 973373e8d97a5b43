"""`python -m lab.pictures DIRECTORY`: a picture of each result that `strandline spark run` has left there."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from matplotlib.figure import Figure

K = TypeVar("K", bound=Hashable)

COLOURS = {"EWR": "#0072b2", "JFK": "#d55e00", "LGA": "#009e73"}
"""Colours that can be told apart without seeing red or green, too."""

WEEKS_ABOVE_DAYS = 60
"""Number of days beyond which weeks are drawn."""

SCALE_MINUTES = 60
"""The end of the colours' scale."""

NEW_YORK = timezone(timedelta(hours=-5))
"""Standard time of New York, all year."""


def _figure(rows: int, height: float, title: str, share_dates: bool = False) -> tuple[Figure, Sequence[Any]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, height), layout="constrained")
    figure.suptitle(title, fontsize=13)
    axes = figure.subplots(rows, 1, squeeze=False, sharex=share_dates)
    return figure, [row[0] for row in axes]


def delays(path: Path, windows: Sequence[tuple[str, int, int, int]]) -> None:
    """Means per airport by day, of many days by week, and the mean by hour of day and month.

    Args:
        windows: (airport, start in ms since 1970, departed, delay minutes).
    """
    figure, (course, hours) = _figure(2, 8, "Departure delays from New York, 2013, as the streaming windows count them")
    _courses(
        course,
        {
            airport: [(_local(at), departed, minutes) for origin, at, departed, minutes in windows if origin == airport]
            for airport in COLOURS
        },
        COLOURS,
    )
    cells = _means(
        ((start.hour, start.month), departed, minutes)
        for start, departed, minutes in ((_local(each[1]), each[2], each[3]) for each in windows)
    )
    months = sorted({month for _, month in cells})
    table = [[cells.get((hour, month), float("nan")) for month in months] for hour in range(24)]
    # Past midnight only the delayed are left, hours late: the scale is for the day.
    image = hours.imshow(table, aspect="auto", cmap="cividis", origin="lower", vmin=0, vmax=SCALE_MINUTES)
    hours.set_xticks(range(len(months)), [date(2013, month, 1).strftime("%b") for month in months])
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
    _legend_above(lower)
    figure.savefig(path, dpi=110)


def weather(path: Path, classes: Sequence[tuple[str, str, int, int, int]]) -> None:
    """Mean delay by kind of weather and airport.

    Args:
        classes: (kind, airport, flights, departed, delay minutes).
    """
    figure, (axes,) = _figure(1, 5, "Departure delays from New York, 2013, by the weather of the scheduled hour")
    kinds = sorted({row[0] for row in classes}, key=lambda kind: -_total_mean(classes, kind))
    width = 0.8 / len(COLOURS)
    for place, (airport, colour) in enumerate(COLOURS.items()):
        found = {row[0]: row for row in classes if row[1] == airport}
        at = [index + (place - 1) * width for index in range(len(kinds))]
        heights = [_mean(list(found[kind][3:]) if kind in found else None) for kind in kinds]
        bars = axes.bar(at, heights, width=width * 0.95, color=colour, label=airport)
        counts = [f"{found[kind][2]:,}" if kind in found else "none" for kind in kinds]
        axes.bar_label(bars, counts, padding=2, fontsize=8)
    axes.set_xticks(range(len(kinds)), kinds)
    axes.set_ylabel("mean delay (minutes)")
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.set_xlabel("above each bar: its number of flights")
    _legend_above(axes)
    figure.savefig(path, dpi=110)


def replay(path: Path, versions: Mapping[str, Sequence[tuple[str, int, int]]], switched: str, fixed: str) -> None:
    """Means of days, of many days by week, as blue and as green have them, and when what was read.

    Args:
        versions: version -> (day, departed, delay minutes) of every airport.
        switched: the day up to which the log was read when green took over.
        fixed: the same when green began.
    """
    switched_at, fixed_at = date.fromisoformat(switched), date.fromisoformat(fixed)
    by_version = {
        name: [(date.fromisoformat(day), departed, minutes) for day, departed, minutes in rows]
        for name, rows in versions.items()
    }
    figure, (axes,) = _figure(1, 5, "A bug fixed by replay: blue takes clock times for numbers, green computes minutes")
    _courses(axes, by_version, {"blue": "#0072b2", "green": "#009e73"})
    axes.margins(y=0.12)  # room for the words
    axes.axvline(fixed_at, color="#666666", linestyle=":", linewidth=1)
    axes.axvline(switched_at, color="#000000", linestyle="--", linewidth=1)
    top = axes.get_ylim()[1]
    axes.text(fixed_at, top, "green begins at offset 0 ", ha="right", va="top", fontsize=9)
    axes.text(switched_at, top, " green is read from here on", ha="left", va="top", fontsize=9)
    figure.savefig(path, dpi=110)


def _courses(axes: Any, given: Mapping[str, Sequence[tuple[date, int, int]]], colours: Mapping[str, str]) -> None:
    """A line for each name: the mean delay by day, of many days by week, of (day, departed, delay minutes)."""
    days = {day.toordinal() for rows in given.values() for day, _, _ in rows}
    span, first = 1 if len(days) <= WEEKS_ABOVE_DAYS else 7, min(days)
    for name, rows in given.items():
        means = _means(((day.toordinal() - first) // span, departed, minutes) for day, departed, minutes in rows)
        known = sorted((date.fromordinal(first + place * span), mean) for place, mean in means.items())
        axes.plot([day for day, _ in known], [mean for _, mean in known], color=colours[name], label=name)
    axes.set_ylabel(f"mean delay of a {'day' if span == 1 else 'week'} (minutes)")
    axes.grid(alpha=0.3)
    _legend_above(axes)


def _legend_above(axes: Any) -> None:
    axes.legend(frameon=False, ncols=3, loc="lower right", bbox_to_anchor=(1, 1), borderpad=0.2)


def _means(counted: Iterable[tuple[K, int, int]]) -> dict[K, float]:
    """Means by key, of (key, departed, minutes); of fewer than 20 departures no mean is drawn."""
    sums: dict[K, list[int]] = {}
    for key, departed, minutes in counted:
        totals = sums.setdefault(key, [0, 0])
        totals[0] += departed
        totals[1] += minutes
    return {key: minutes / departed for key, (departed, minutes) in sums.items() if departed >= 20}


def _local(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000, NEW_YORK)


def _mean(totals: Sequence[int] | None) -> float:
    """Mean of (departed, minutes)."""
    return totals[1] / totals[0] if totals and totals[0] else 0.0


def _total_mean(classes: Sequence[tuple[str, str, int, int, int]], kind: str) -> float:
    departed = sum(row[3] for row in classes if row[0] == kind)
    return sum(row[4] or 0 for row in classes if row[0] == kind) / max(departed, 1)


PICTURES: Mapping[str, Callable[[Path, Any], None]] = {
    "delays": delays,
    "lake": lambda path, result: lake(path, **result),
    "weather": weather,
    "replay": lambda path, result: replay(path, **result),
}


def draw(directory: Path) -> list[Path]:
    """Draw what there are results of, each beside its own; the pictures."""
    drawn = []
    for name, picture in PICTURES.items():
        result = directory / f"{name}.json"
        if result.exists():
            path = result.with_suffix(".png")
            picture(path, json.loads(result.read_text())[name])
            drawn.append(path)
    return drawn


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(directory: Path) -> None:
    """Draw the results of the pipelines that ran in DIRECTORY; exit 1 if there are none."""
    drawn = draw(directory)
    if not drawn:
        raise click.ClickException(f"{directory} has no result of a pipeline: strandline spark run NAME --directory it")
    for path in drawn:
        click.echo(path)


if __name__ == "__main__":
    main(prog_name="python -m lab.pictures")
