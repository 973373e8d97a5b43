"""`spark.readStream.format("strandline")`: the driver's plan of each micro-batch, and the tasks' reading.

Offsets come from the planner alone, so what a batch holds does not depend on this process. Limits: Spark's Python API
takes one ReadLimit from a source and hands it back with each trigger, or ReadAllAvailable (Trigger.Once); any limit
but ReadAllAvailable stands for all of the limits that the options set.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
except ImportError as error:  # the newest part of Spark's Python data source API that is used here
    raise ImportError(f"format strandline needs Spark 4.2 or later, and this is {pyspark.__version__}") from error

from strandline.proto.system import SystemClock
from strandline.spark.handover import note_range
from strandline.spark.options import SourceOptions
from strandline.spark.reader import RangePartition, read_range
from strandline.spark.stream_offsets import StreamOffset
from strandline.spark.stream_planner import StreamPlanner

if TYPE_CHECKING:
    import pyarrow as pa

    from strandline.spark.lookup import ClusterOffsets


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query's source. Pickles without its connections; the driver's copy opens them on first use."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._lookup: ClusterOffsets | None = None
        self._planner: StreamPlanner | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lookup": None, "_planner": None}

    def initialOffset(self) -> dict[str, Any]:
        """Offsets at which a query without a checkpoint starts. Raises as `StreamPlanner.initial`."""
        return self._plan().initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit that stands for those of the options."""
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Offsets at which the next micro-batch ends; `start` if there is none. Raises as `StreamPlanner.next_end`."""
        begin = StreamOffset.from_json(start)
        end = self._plan().next_end(begin, unlimited=isinstance(limit, ReadAllAvailable))
        return start if end is begin else end.to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        """Trigger.AvailableNow: this run reads nothing that is written from now on."""
        self._plan().stop_at_present()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The ends of the log at the last trigger: `latestOffset` in the query's progress. Beside the form of an offset
        it says how far each partition lags behind: Spark's Python API has no other place for that."""
        if self._planner is None or self._planner.newest is None:
            return None
        lag: dict[str, dict[str, int]] = {}
        for (topic, number), behind in sorted(self._planner.lag.items()):
            lag.setdefault(topic, {})[str(number)] = behind
        return {**self._planner.newest.to_json(), "lag": lag}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of one micro-batch. Raises as `StreamPlanner.ranges`."""
        ranges = self._plan().ranges(StreamOffset.from_json(start), StreamOffset.from_json(end))
        return [RangePartition(part, number) for number, part in enumerate(ranges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Arrow batches of one range, in the order of offsets. Raises as `read_range`."""
        assert isinstance(partition, RangePartition), partition
        part = partition.range
        on_loss = note_range(part, partition.number)
        if part.size:
            yield from read_range(self._options, part, self._schema, on_loss)

    def stop(self) -> None:
        """The query has ended: close the connections."""
        lookup, self._lookup, self._planner = self._lookup, None, None
        if lookup is not None:
            lookup.close()

    def _plan(self) -> StreamPlanner:
        if self._planner is None:
            from strandline.spark.lookup import ClusterOffsets

            self._lookup = ClusterOffsets(self._options.bootstrap, self._options.client_settings)
            self._planner = StreamPlanner(self._options, self._lookup, SystemClock())
        return self._planner
