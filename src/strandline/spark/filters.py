"""What the filters of a batch read say of offsets: fewer partitions and shorter ranges are planned.

Spark applies every filter again, so a range may be too wide and never too narrow. Only lower bounds of the time can be
used: timestamps are the producers' and need not rise, and the log's index knows the first record at or after a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import datasource as spark

from strandline.spark.planner import Narrowing


@dataclass(frozen=True)
class _Column:
    name: str
    value: Any


def narrowing(filters: Iterable[spark.Filter]) -> Narrowing:
    """Narrowing by all filters together. Filters of other columns and forms are left to Spark."""
    found = Narrowing()
    for item in filters:
        path: tuple[str, ...] = getattr(item, "attribute", ())
        if len(path) != 1 or not hasattr(item, "value"):
            continue
        found = _narrowed(found, item, _Column(path[0], item.value))
    return found


def _narrowed(found: Narrowing, item: spark.Filter, column: _Column) -> Narrowing:
    equal = isinstance(item, spark.EqualTo | spark.EqualNullSafe)
    value = column.value
    if value is None:
        return found
    if column.name == "partition" and (equal or isinstance(item, spark.In)):
        wanted = frozenset([value]) if equal else frozenset(value)
        return replace(found, partitions=wanted if found.partitions is None else found.partitions & wanted)
    if column.name == "topic" and (equal or isinstance(item, spark.In)):
        names = frozenset([value]) if equal else frozenset(value)
        return replace(found, topics=names if found.topics is None else found.topics & names)
    above = isinstance(item, spark.GreaterThan | spark.GreaterThanOrEqual)
    below = isinstance(item, spark.LessThan | spark.LessThanOrEqual)
    if column.name == "offset" and isinstance(value, int):
        if equal or above:
            found = replace(found, low=max(found.low, value + isinstance(item, spark.GreaterThan)))
        if equal or below:
            end = value + (not isinstance(item, spark.LessThan))
            found = replace(found, high=end if found.high is None else min(found.high, end))
    if column.name == "timestamp" and isinstance(value, datetime) and (equal or above):
        since_ms = int((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp() * 1000)
        if since_ms > 0:  # negative times are words of the protocol: -1 would ask for the end of the log
            found = replace(found, since_ms=since_ms if found.since_ms is None else max(found.since_ms, since_ms))
    return found
