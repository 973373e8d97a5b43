"""Progress of a streaming query, batch by batch: records, lag, watermark, rows dropped as late."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from strandline.proto.json_text import read_json
from strandline.spark.stream_offsets import StreamOffset

POLL_S = 0.2


@dataclass(frozen=True)
class BatchSeen:
    """One micro-batch as the query's progress tells it."""

    query: str
    batch: int
    records: int
    lag: int
    """Records in the log at the trigger that no batch has read yet."""
    watermark: str
    """Event times before this are late from the next batch on; "" where the query has none."""
    late: int
    """Rows dropped because they came after the watermark."""
    duplicates: int
    """Rows dropped because their id was there."""
    state_rows: int
    seconds: float
    state_bytes: int = 0
    """Memory of the state, as its store counts it."""
    offsets: Mapping[str, tuple[Mapping[int, int], Mapping[int, int]]] = field(default_factory=dict)
    """Topic -> (first offset, end offset) of each partition: what the batch has read."""


@dataclass
class QueryTotals:
    """All batches of one query."""

    batches: list[BatchSeen] = field(default_factory=list)

    @property
    def records(self) -> int:
        """Rows read."""
        return sum(batch.records for batch in self.batches)

    @property
    def late(self) -> int:
        """Rows dropped because they came after the watermark."""
        return sum(batch.late for batch in self.batches)

    @property
    def duplicates(self) -> int:
        """Rows dropped because their id was there."""
        return sum(batch.duplicates for batch in self.batches)

    @property
    def seconds(self) -> float:
        """All batches' time."""
        return sum(batch.seconds for batch in self.batches)

    @property
    def watermark(self) -> str:
        """The last one."""
        return self.batches[-1].watermark if self.batches else ""

    @property
    def largest_state(self) -> tuple[int, int]:
        """Rows and bytes of the state when it was largest."""
        return max(((batch.state_rows, batch.state_bytes) for batch in self.batches), default=(0, 0))


class View(Protocol):
    """Shows progress; the commands' is in colour, the tests' remembers."""

    def step(self, title: str) -> None:
        """A new step begins."""

    def sent(self, count: int, total: int) -> None:
        """Show that `count` of `total` events are in their topic."""

    def batch(self, seen: BatchSeen) -> None:
        """A micro-batch is done."""


class Silent:
    """A view that shows nothing."""

    def step(self, title: str) -> None:
        """Ignore the step."""

    def sent(self, count: int, total: int) -> None:
        """Ignore the number of sent events."""

    def batch(self, seen: BatchSeen) -> None:
        """Ignore the micro-batch."""


def read_progress(progress: Mapping[str, Any], query: str) -> BatchSeen:
    """One entry of `query.recentProgress`."""
    lag = 0
    offsets: dict[str, tuple[dict[int, int], dict[int, int]]] = {}
    for source in progress["sources"]:
        end, newest = _offsets(source["endOffset"]), _offsets(source.get("latestOffset"))
        start = _offsets(source["startOffset"]) or _since(source["endOffset"])
        lag += sum(max(0, last - end.get(where, last)) for where, last in newest.items())
        for (topic, partition), stop in end.items():
            begins, stops = offsets.setdefault(topic, ({}, {}))
            begins[partition], stops[partition] = start.get((topic, partition), 0), stop
    states = progress["stateOperators"]
    return BatchSeen(
        query=query,
        batch=progress["batchId"],
        records=progress["numInputRows"],
        lag=lag,
        watermark=progress["eventTime"].get("watermark", ""),
        late=sum(state["numRowsDroppedByWatermark"] for state in states),
        duplicates=sum(state["customMetrics"].get("numDroppedDuplicateRows", 0) for state in states),
        state_rows=sum(state["numRowsTotal"] for state in states),
        seconds=progress["durationMs"].get("triggerExecution", 0) / 1000,
        state_bytes=sum(state["memoryUsedBytes"] for state in states),
        offsets=offsets,
    )


def follow(queries: Mapping[str, Any], view: View) -> dict[str, QueryTotals]:
    """Wait until every query has ended, and show each batch as it is done.

    Raises:
        StreamingQueryException: a query failed; the others are stopped.
    """
    totals = {name: QueryTotals() for name in queries}
    try:
        running = dict(queries)
        while running:
            for name, query in list(running.items()):
                ended = query.awaitTermination(POLL_S)
                for seen in _new_batches(query, name, totals[name].batches):
                    totals[name].batches.append(seen)
                    view.batch(seen)
                if ended:
                    del running[name]
    finally:
        for query in queries.values():
            if query.isActive:
                query.stop()
    return totals


def remember(path: Path, totals: QueryTotals) -> QueryTotals:
    """Add this run's batches to those of earlier runs with the same checkpoint, in a file; returns all of them."""
    known = {}
    if path.is_file():
        for line in path.read_text().splitlines():
            earlier = BatchSeen(**read_json(line))
            known[earlier.batch] = earlier
    known.update({seen.batch: seen for seen in totals.batches})
    together = QueryTotals([known[batch] for batch in sorted(known)])
    path.write_text("".join(json.dumps({**asdict(seen), "offsets": {}}) + "\n" for seen in together.batches))
    return together


def _new_batches(query: Any, name: str, known: Sequence[BatchSeen]) -> Iterable[BatchSeen]:
    last = known[-1].batch if known else -1
    for progress in query.recentProgress:
        ran = "addBatch" in progress["durationMs"]  # the others say that the query waits
        if ran and progress["batchId"] > last:
            last = progress["batchId"]
            yield read_progress(progress, name)


def _document(text: object) -> Any:
    return read_json(text) if isinstance(text, str) else text


def _offsets(text: object) -> dict[tuple[str, int], int]:
    document = _document(text)
    if not document:
        return {}
    return {(where.topic, where.partition): end for where, end in StreamOffset.from_json(document).offsets.items()}


def _since(text: object) -> dict[tuple[str, int], int]:
    document = _document(text)
    if not document:
        return {}
    since = StreamOffset.from_json(document).since
    return {} if since is None else {(where.topic, where.partition): at for where, at in since.offsets.items()}
