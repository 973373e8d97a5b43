"""Pipeline (d), a replay: version blue runs; a bug in it is found; version green starts from the beginning beside it,
takes over and continues alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strandline.spark.pipelines import dataset, expected, replay
from strandline.spark.pipelines.checkpoints import reached
from strandline.spark.pipelines.feed import ends
from strandline.spark.pipelines.jobs import FLIGHTS, Context, figures_of
from strandline.spark.pipelines.outcome import Outcome
from strandline.spark.pipelines.progress import QueryTotals
from strandline.spark.pipelines.replay import BLUE, GREEN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FOUND_AT = 0.6
"""Share of the data (0 to 1) that is in the log when the bug is found and green starts."""

SWITCH_AT = 0.8
"""Share of the data (0 to 1) that is in the log when green takes over from blue."""

Days = dict[tuple[str, str], tuple[int, int, int]]
"""(airport, day) -> (flights, departed, delay minutes)."""


@dataclass
class _Run:
    """State of one replay: its topics, and the totals of its queries."""

    job: Context
    topics: Mapping[str, str]
    """Version -> topic of its results."""
    live: str
    source: str = ""
    totals: dict[str, QueryTotals] = field(default_factory=dict)

    def send(self, share: float) -> None:
        """Send events until the log has this share (0 to 1) of the data."""
        self.source = self.job.send(FLIGHTS, self.job.events[: int(len(self.job.events) * share)])

    def query(self, *versions: str) -> None:
        """Run these versions side by side up to the log's present end."""
        self.totals |= self.job.run({version: partial(self._start, version) for version in versions})

    def reached(self, version: str) -> dict[int, int]:
        """Partition -> offset up to which a version has processed the events."""
        return reached(self.job.path(f"checkpoint-{version}"))

    def results(self, version: str) -> Days:
        """Current results of a version."""
        return _days(replay.results(self.job.batch(self.topics[version])))

    def fresh(self, version: str, up_to: Mapping[int, int]) -> Days:
        """Results of a version, computed in one batch over the log up to the offsets `up_to`, for comparison."""
        job = self.job
        reader = job.spark.read.format("strandline").option("kafka.bootstrap.servers", job.bootstrap)
        ending = json.dumps({self.source: {str(number): offset for number, offset in up_to.items()}})
        records = reader.option("subscribe", self.source).option("endingOffsets", ending).load()
        return _days(replay.totals(records, version))

    def _start(self, version: str, checkpoint: Path) -> Any:
        records = self.job.stream(self.source)
        return replay.start(records, version, self.job.bootstrap, self.topics[version], checkpoint)


def flights_replay(job: Context) -> Outcome:
    """Run pipeline (d): a bug is fixed by a second run from the beginning."""
    compacted = {"cleanup.policy": "compact"}
    topics = {version: job.topic(f"daily-delays-{version}", 3, **compacted) for version in (BLUE, GREEN)}
    run = _Run(job, topics, job.topic("daily-delays-live", 1, **compacted))
    # Blue ended when green took over: a job that is run again continues with green alone.
    chosen = replay.live(job.bootstrap, run.live) if run.reached(BLUE) else None
    if chosen is None:
        run.send(FOUND_AT)
        job.view.step("blue counts")
        run.query(BLUE)
        run.send(SWITCH_AT)
        job.view.step("the bug is found: green begins at offset 0, blue goes on")
        run.query(BLUE, GREEN)
        chosen = replay.switch(job.bootstrap, run.live, GREEN, run.reached(GREEN), run.reached(BLUE))
    run.send(1)
    job.view.step("green goes on alone")
    run.query(GREEN)
    job.view.step("comparing with fresh computations")
    outcome = Outcome(figures=figures_of(run.totals))
    _judge(outcome, run, chosen)
    return outcome


def _judge(outcome: Outcome, run: _Run, chosen: replay.Live) -> None:
    job, blue_at, there = run.job, run.reached(BLUE), ends(run.job.bootstrap, run.source)
    blue, green = run.results(BLUE), run.results(GREEN)
    flights = dataset.reported(job.events)
    want = {
        key: (day.flights, day.departed, day.delay_minutes) for key, day in expected.daily(flights.values()).items()
    }
    switched_at = sum(chosen.offsets.values())
    began_at = int(switched_at * FOUND_AT / SWITCH_AT)
    versions = {
        version: [(day, departed, minutes) for (_, day), (_, departed, minutes) in days.items()]
        for version, days in ((BLUE, blue), (GREEN, green))
    }
    read_until = {"switched": _last_day(job.events[:switched_at]), "fixed": _last_day(job.events[:began_at])}
    outcome.result = job.keep(replay={"versions": versions, **read_until})
    wrong = sum(1 for key, row in blue.items() if row != want.get(key))
    outcome.figures["days and airports"] = f"{len(green):,}; blue is wrong in {wrong:,} of its {len(blue):,}"
    outcome.figures["log"] = f"{sum(there.values()):,} records; switched at {switched_at:,}"
    fresh = run.fresh(GREEN, there)
    outcome.judge(
        "replay equals a fresh computation",
        green == fresh,
        f"{len(fresh):,} rows, computed in one batch: all equal"
        if green == fresh
        else f"{sum(1 for key in fresh if green.get(key) != fresh[key]):,} of {len(fresh):,} rows differ",
    )
    equal = sum(1 for key, row in want.items() if green.get(key) == row)
    outcome.judge("green equals the data set", green == want, f"{equal:,} of {len(want):,} rows equal")
    again = run.fresh(BLUE, blue_at)
    outcome.judge(
        "blue is untouched by green",
        blue == again,
        f"{len(again):,} rows equal a computation with the bug over blue's {sum(blue_at.values()):,} records",
    )
    now = replay.live(job.bootstrap, run.live)
    behind = [number for number, offset in blue_at.items() if chosen.offsets.get(number, 0) < offset]
    outcome.judge(
        "taken over without a gap",
        now == chosen and chosen.version == GREEN and not behind and run.reached(GREEN) == there,
        f"green was chosen at {switched_at:,} records, blue had {sum(blue_at.values()):,}; "
        f"green is at {sum(run.reached(GREEN).values()):,} of {sum(there.values()):,} now",
    )


def _days(rows: DataFrame) -> Days:
    return {(row.origin, str(row.day)): (row.flights, row.departed, row.delay_minutes) for row in rows.collect()}


def _last_day(events: Sequence[dataset.Event]) -> str:
    return dataset.day_of(events[-1].arrival_ms)
