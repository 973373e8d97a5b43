"""The four pipelines as one job each: feed the topics, run the queries, keep the result, check what must hold."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strandline.lake.upkeep import compact, vacuum
from strandline.spark.pipelines import dataset, delays, expected, frames, weather
from strandline.spark.pipelines.feed import ends, ensure_topic, feed
from strandline.spark.pipelines.lake import Lake, of_flights
from strandline.spark.pipelines.lake import start as start_lake
from strandline.spark.pipelines.outcome import Outcome
from strandline.spark.pipelines.progress import QueryTotals, Silent, View, follow, remember

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FLIGHTS = "flights"
WEATHER = "weather"
RESTART_AT = 0.6
"""Share of the data (0 to 1) that is in the log when the lake's first run ends."""


@dataclass
class Context:
    """Environment of a job: its cluster, data and directory."""

    spark: SparkSession
    bootstrap: str
    directory: Path
    """Directory for checkpoints, Parquet files and the result. A job that is run again there continues."""
    data: Path
    fraction: float = 1.0
    prefix: str = ""
    """Before the names of all topics."""
    records_per_batch: int = 40_000
    view: View = field(default_factory=Silent)
    created: list[str] = field(default_factory=list)
    """Topics that this job has created."""

    @cached_property
    def events(self) -> list[dataset.Event]:
        """The reports of flights."""
        return dataset.flight_events(self.data, self.fraction)

    def topic(self, name: str, partitions: int = 4, **configs: str) -> str:
        """A topic of this job, created if it is missing."""
        full = self.prefix + name
        if ensure_topic(self.bootstrap, full, partitions, **configs):
            self.created.append(full)
        return full

    def send(self, name: str, events: Sequence[dataset.Event]) -> str:
        """Bring a topic up to these events."""
        topic = self.topic(name)
        self.view.step(f"sending {len(events):,} records to {topic}")
        feed(self.bootstrap, topic, events, lambda sent: self.view.sent(sent, len(events)))
        return topic

    def stream(self, topic: str, starting: str = "earliest", records_per_batch: int | None = None) -> DataFrame:
        """The topic as a stream."""
        size = records_per_batch or self.records_per_batch
        return frames.stream_of(self.spark, self.bootstrap, topic, size, starting)

    def batch(self, topic: str) -> DataFrame:
        """The topic as it is now."""
        return frames.batch_of(self.spark, self.bootstrap, topic)

    def path(self, name: str) -> Path:
        """A place in the job's directory."""
        self.directory.mkdir(parents=True, exist_ok=True)
        return self.directory / name

    def keep(self, **result: Any) -> Path:
        """Write the result in short, as JSON."""
        path = self.path(f"{next(iter(result))}.json")
        path.write_text(json.dumps(result))
        return path

    def run(self, queries: Mapping[str, Callable[[Path], Any]]) -> dict[str, QueryTotals]:
        """Start queries, each given its checkpoint, and wait for their end; the totals are of all runs so far."""
        running = {name: start(self.path(f"checkpoint-{name}")) for name, start in queries.items()}
        totals = follow(running, self.view)
        return {name: remember(self.path(f"progress-{name}.jsonl"), totals[name]) for name in totals}


def flights_delays(job: Context) -> Outcome:
    """(a) Live delays per airport, to a topic and to Parquet."""
    source = job.send(FLIGHTS, job.events)
    target = job.topic("flights-delays", 3)
    directory = job.path("delays")
    job.view.step("delays per airport and hour: live to a topic, final to Parquet")
    totals = job.run(
        {
            "live": lambda at: delays.start_live(job.stream(source), job.bootstrap, target, at),
            "final": lambda at: delays.start_final(job.stream(source), directory, at),
        }
    )
    job.view.step("reading the results")
    revisions = job.batch(target)
    live = _windows(frames.latest_by_key(revisions, delays.RESULT, "origin", "window_start"))
    final = _windows(job.spark.read.parquet(str(directory)))
    rows = [(origin, start_ms, row.departed, row.delay_minutes) for (origin, start_ms), row in live.items()]
    outcome = Outcome(result=job.keep(delays=rows))
    outcome.figures |= figures_of(totals)
    outcome.figures |= {
        "windows": f"{len(live):,} in the topic ({sum(ends(job.bootstrap, target).values()):,} revisions)",
        "windows closed": f"{len(final):,} in Parquet",
    }
    _judge_delays(outcome, job, live, final, totals)
    return outcome


def _judge_delays(
    outcome: Outcome,
    job: Context,
    live: Mapping[tuple[str, int], Any],
    final: Mapping[tuple[str, int], Any],
    totals: Mapping[str, QueryTotals],
) -> None:
    flights = dataset.reported(job.events)
    want = expected.hourly(flights.values())
    counted = sum(row.flights for row in live.values())
    query = totals["live"]
    whole = query.records == len(job.events)
    outcome.judge(
        "each report accounted for",
        counted == query.records - query.duplicates - query.late if whole else None,
        f"{query.records:,} read = {counted:,} counted + {query.duplicates:,} duplicates + {query.late:,} late",
    )
    missing = {key: totals.flights - (live[key].flights if key in live else 0) for key, totals in want.items()}
    outcome.judge(
        "equal to the data set",
        min(missing.values()) >= 0 and sum(missing.values()) == len(flights) - counted and live.keys() <= want.keys(),
        f"{sum(1 for gap in missing.values() if not gap):,} of {len(want):,} windows have every flight; "
        f"the others lack the {sum(missing.values()):,} that came too late",
    )
    exact = [key for key, gap in missing.items() if not gap]
    wrong = [key for key in exact if _totals(live[key]) != want[key]]
    outcome.judge("sums equal", not wrong, f"{len(exact) - len(wrong):,} of {len(exact):,} whole windows, every column")
    differ = [key for key, row in final.items() if key not in live or _totals(live[key]) != _totals(row)]
    outcome.judge(
        "Parquet agrees with the topic",
        not differ and bool(final),
        f"{len(final) - len(differ):,} of {len(final):,} closed windows equal; {len(live) - len(final):,} still open",
    )


def flights_lake(job: Context) -> Outcome:
    """(b) The log as a Parquet lake."""
    lake = Lake(job.path("lake"))
    first = job.events[: int(len(job.events) * RESTART_AT)]
    known = sum(lake.state().ends.values())
    source = job.send(FLIGHTS, first)
    partitions = len(ends(job.bootstrap, source))

    def start(checkpoint: Path) -> Any:
        records = job.stream(source, lake.starting_offsets(source, partitions))
        return start_lake(lake, of_flights(records), checkpoint)

    job.view.step("log to lake, first run")
    one = job.run({"lake-1": start})["lake-1"]
    after_first = lake.state().rows
    job.send(FLIGHTS, job.events)
    job.view.step("log to lake, second run: no checkpoint, the lake itself says where to begin")
    two = job.run({"lake-2": start})["lake-2"]
    before = lake.state()
    job.view.step("compacting small files")
    compact(lake)
    deleted = vacuum(lake)
    after = lake.state()
    job.view.step("reading the lake")
    by_date, counted, distinct = _lake_contents(lake.read(job.spark))
    files = [{date[5:]: len(names) for date, names in each.files_by_date().items()} for each in (before, after)]
    outcome = Outcome(result=job.keep(lake={"rows": by_date, "before": files[0], "after": files[1]}))
    outcome.figures |= figures_of({"first run": one, "second run": two})
    outcome.figures |= {
        "rows": f"{counted:,} in {len(by_date)} dates, {after.next_number} commits",
        "files": f"{len(before.files):,} before compaction, {len(after.files):,} after ({deleted:,} deleted)",
    }
    there = ends(job.bootstrap, source)
    want: dict[str, int] = {}
    for event in job.events:
        if event.flight is not None:
            day = dataset.day_of(event.flight.event_ms)
            want[day] = want.get(day, 0) + 1
    outcome.judge(
        "every record once",
        counted == distinct == sum(there.values()) == len(job.events),
        f"{counted:,} rows at {distinct:,} different offsets; the topic holds {sum(there.values()):,}",
    )
    outcome.judge(
        "offset ranges follow on one another",
        {partition: after.ends[source, partition] for partition in there} == there,
        f"up to {', '.join(f'{p}@{end:,}' for p, end in sorted(there.items()))}",
    )
    outcome.judge("dates equal the data set", by_date == want, f"{len(by_date)} dates, each with its number of reports")
    outcome.judge(
        "second run read only the rest",
        two.records == len(job.events) - after_first if not known else None,
        f"{two.records:,} records after {after_first:,}",
    )
    return outcome


def _lake_contents(rows: DataFrame) -> tuple[dict[str, int], int, int]:
    """Rows by date, all of them, and at how many different places of the log they were."""
    from pyspark.sql import functions as f

    by_date = {str(row.date): row["count"] for row in rows.groupBy("date").count().collect()}
    distinct = rows.select(f.count_distinct("topic", "partition", "offset").alias("n")).collect()[0].n
    return by_date, sum(by_date.values()), distinct


def flights_weather(job: Context) -> Outcome:
    """(c) Flights enriched with the weather of their hour."""
    flights = dataset.reported(job.events)
    until_ms = max(dataset.hour_of(flight.scheduled_ms) for flight in flights.values())
    observations = dataset.weather_events(job.data, until_ms)
    source, sky = job.send(FLIGHTS, job.events), job.send(WEATHER, observations)
    directory = job.path("weather")
    # Both streams go through the year at the same pace: the lower watermark counts, the faster one would only wait.
    pace = max(1, job.records_per_batch * len(observations) // len(job.events))
    job.view.step("joining flights with the weather of their hour")
    totals = job.run(
        {"join": lambda at: weather.start(job.stream(source), job.stream(sky, records_per_batch=pace), directory, at)}
    )
    job.view.step("reading the result")
    rows = job.spark.read.parquet(str(directory))
    found = [tuple(row) for row in weather.by_class(rows).collect()]
    given = {row.id: row.observed is not None for row in rows.select("id", "observed").collect()}
    given_rows = rows.count()
    outcome = Outcome(result=job.keep(weather=found))
    observed = {(event.key.decode(), event.arrival_ms - 5 * dataset.MINUTE_MS) for event in observations}
    partner = {name: (each.origin, dataset.hour_of(each.scheduled_ms)) in observed for name, each in flights.items()}
    outcome.figures |= figures_of(totals)
    with_weather = sum(given.values())
    outcome.figures["flights given out"] = f"{len(given):,}, {with_weather:,} with weather, {given_rows:,} rows"
    outcome.judge("each flight once", given_rows == len(given), f"{given_rows:,} rows, {len(given):,} flights")
    wrong = sum(1 for name, has in given.items() if partner[name] != has)
    outcome.judge(
        "weather where there is some", wrong == 0, f"{len(given) - wrong:,} of {len(given):,} as in the data set"
    )
    lacking = [name for name in flights if name not in given]
    waiting = sum(1 for name in lacking if not partner[name])
    lost, late = len(lacking) - waiting, totals["join"].late
    whole = totals["join"].records == len(job.events) + len(observations)
    outcome.judge(
        "the others are late, or wait",
        lost <= late if whole else None,
        f"{lost:,} flights with a partner came too late ({late:,} rows dropped); {waiting:,} without one are late or "
        "wait for the watermark",
    )
    return outcome


def _windows(rows: DataFrame) -> dict[tuple[str, int], Any]:
    """Totals by airport and start of the window (ms since 1970; Spark gives times to Python in the machine's own time
    zone)."""
    from pyspark.sql import functions as f

    timed = rows.withColumn("start_ms", f.unix_millis("window_start"))
    return {(row.origin, row.start_ms): row for row in timed.collect()}


def _totals(row: Any) -> expected.Totals:
    return expected.Totals(row.flights, row.departed, row.delayed, row.delay_minutes, row.max_delay)


def figures_of(totals: Mapping[str, QueryTotals]) -> dict[str, str]:
    figures = {}
    for name, query in totals.items():
        rate = f", {query.records / query.seconds:,.0f} records/s" if query.seconds else ""
        figures[f"query {name}"] = (
            f"{query.records:,} records in {len(query.batches)} batches, {query.seconds:.1f} s{rate}"
        )
        rows, size = query.largest_state
        if rows:
            figures[f"query {name} state"] = f"{rows:,} rows at most, {size / 1e6:,.0f} MB"
        if query.late or query.duplicates:
            figures[f"query {name} dropped"] = f"{query.duplicates:,} duplicates, {query.late:,} late"
    return figures
