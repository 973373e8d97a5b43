"""Metrics that a client pushes: OpenTelemetry's MetricsData, of which the numbers are read.

The few messages are described here, field by field, for the protobuf library that is there anyway: the package of all
of OpenTelemetry's messages would be one more dependency of every node, with bounds of its own on protobuf's version.
The format has been stable since its version 1.0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import Any

from google.protobuf.message import DecodeError

SERIES_MAX = 100
"""Number of metrics that are kept for one client."""

POINTS_MAX = 5_000
"""Data points that are read from one push: a push full of empty ones costs no more than others."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._\-]{0,127}")

_STRING, _DOUBLE, _FIXED64, _SFIXED64 = 9, 1, 6, 16
_MESSAGES: dict[str, tuple[tuple[str, int, int | str, bool], ...]] = {
    "MetricsData": (("resource_metrics", 1, "ResourceMetrics", True),),
    "ResourceMetrics": (("scope_metrics", 2, "ScopeMetrics", True),),
    "ScopeMetrics": (("metrics", 2, "Metric", True),),
    "Metric": (
        ("name", 1, _STRING, False),
        ("gauge", 5, "Points", False),
        ("sum", 7, "Points", False),
        ("histogram", 9, "Histogram", False),
    ),
    "Points": (("data_points", 1, "NumberPoint", True),),
    "NumberPoint": (("as_double", 4, _DOUBLE, False), ("as_int", 6, _SFIXED64, False)),
    "Histogram": (("data_points", 1, "HistogramPoint", True),),
    "HistogramPoint": (("count", 4, _FIXED64, False), ("sum", 5, _DOUBLE, False)),
}
"""Message -> (field, number, type or message, repeated). Other fields are passed over."""


@lru_cache(maxsize=1)
def metrics_data() -> Any:
    """The class of the outermost message, MetricsData; made at the first push."""
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass

    file = FileDescriptorProto(name="strandline/otlp.proto", package="strandline.otlp", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated in fields:
            label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
            one = message.field.add(name=field, number=number, label=label)
            if isinstance(kind, str):
                one.type, one.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".strandline.otlp.{kind}"
            else:
                one.type = FieldDescriptorProto.Type.ValueType(kind)
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("strandline.otlp.MetricsData"))


def read_metrics(data: bytes) -> tuple[dict[str, float], int]:
    """One number for each metric, and how many metrics were left out: too many, or without a plain name.

    A gauge with several data points, of partitions or nodes, counts by the greatest of them; a sum by their sum; a
    histogram by its mean.

    Raises:
        ValueError: these are no metrics.
    """
    try:
        message = metrics_data().FromString(data)
    except DecodeError as error:
        raise ValueError(f"the metrics are no MetricsData of OpenTelemetry: {error}") from error
    found: dict[str, float] = {}
    left_out = 0
    points_left = POINTS_MAX
    for metric in _metrics(message):
        value, looked_at = _value(metric, points_left)
        points_left -= looked_at
        if points_left <= 0:
            return found, left_out + 1
        if value is None:
            continue
        known = metric.name in found
        # rule A42/a-clients-metrics-without-bound
        if not _NAME.fullmatch(metric.name) or (len(found) >= SERIES_MAX and not known):
            left_out += 1
            continue
        found[metric.name] = max(value, found[metric.name]) if known else value
    return found, left_out


def _metrics(message: Any) -> Iterator[Any]:
    """All metrics of a message, at most `POINTS_MAX`."""
    return islice(
        (
            metric
            for resource in message.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        ),
        POINTS_MAX,
    )


def _value(metric: Any, points_max: int) -> tuple[float | None, int]:
    """The number that stands for a metric, and how many data points were looked at."""
    if metric.HasField("histogram"):
        points = list(islice(metric.histogram.data_points, points_max))
        count = sum(point.count for point in points)
        return _finite([sum(point.sum for point in points) / count] if count else []), len(points) + 1
    adds_up = metric.HasField("sum")
    points = list(islice((metric.sum if adds_up else metric.gauge).data_points, points_max))
    numbers = [point.as_double or float(point.as_int) for point in points]
    return _finite([math.fsum(numbers)] if adds_up and numbers else numbers), len(points) + 1


def _finite(numbers: Iterable[float]) -> float | None:
    return max((number for number in numbers if math.isfinite(number)), default=None)
