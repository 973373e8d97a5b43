"""Reads the numbers of OpenTelemetry's MetricsData, the format in which clients push metrics.

The needed messages are declared here, field by field, for the protobuf library, which nodes have anyway. The package
with all of OpenTelemetry's messages would be one more dependency of every node, with its own bounds on protobuf's
version. The format has been stable since its version 1.0.
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
"""Maximum metrics that are kept for one client."""

POINTS_MAX = 5_000
"""Maximum data points read from one push; each metric counts as one more, so that empty metrics are not free."""

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
"""Message -> its fields as (name, number, type or message, repeated). Other fields are skipped."""


@lru_cache(maxsize=1)
def metrics_data() -> Any:
    """Return the class of the outermost message, MetricsData, created at the first call."""
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
    """Return one number per metric, and how many metrics were left out (above `SERIES_MAX`, or with an invalid name).

    The number of a gauge is its greatest data point (it may have one per partition or node), that of a sum the sum of
    its data points, that of a histogram its mean.

    Raises:
        ValueError: `data` is not a MetricsData message.
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
    """Return an iterator over the metrics of a message, at most `POINTS_MAX`."""
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
    """Return a metric's number (None: it has none), and its count of data points plus one."""
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
