"""Names that a topic may have (Kafka's rules)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError

MAX_NAME_LENGTH = 249
"""A file name may have 255 bytes; a partition's directory is the topic's name, a dash and the partition's number."""

METADATA_TOPIC = "__cluster_metadata"
"""The controllers' own log, which is no topic: one of that name would lie in the same directory (`log.log_dir`)."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str) -> None:
    """Raises KafkaError INVALID_TOPIC_EXCEPTION for a name that no topic may have."""
    broken = ""
    if not name:
        broken = "it is empty"
    elif name in {".", ".."}:
        broken = "it is '.' or '..', which are directories"
    elif len(name) > MAX_NAME_LENGTH:
        broken = f"it is longer than {MAX_NAME_LENGTH} characters"
    elif not _LEGAL.fullmatch(name):
        broken = "it has characters other than ASCII letters and digits, '.', '_' and '-'"
    if broken:
        shown = name if len(name) <= MAX_NAME_LENGTH else name[:MAX_NAME_LENGTH] + "..."
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"The topic name {shown!r} cannot be: {broken}.")


class TakenNames:
    """Names that a new topic may not have because of others: metric names turn '.' into '_', so that two topics may not
    differ in these alone. One lookup a name, however many topics there are: one request creates thousands."""

    def __init__(self, existing: Iterable[str]) -> None:
        self._existing = existing
        self._by_metric: dict[str, str] | None = None

    def check(self, name: str) -> None:
        """Raises KafkaError INVALID_TOPIC_EXCEPTION, naming the topic that `name` collides with."""
        metric = _metric_name(name)
        if "_" not in metric:
            return
        other = self._names().get(metric, name)
        if other != name:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"The topic name {name!r} collides with the existing topic {other!r}: "
                "they differ in '.' and '_' alone.",
            )

    def add(self, name: str) -> None:
        """Note that a topic of this name is being created too."""
        self._names()[_metric_name(name)] = name

    def _names(self) -> dict[str, str]:
        if self._by_metric is None:
            self._by_metric = {_metric_name(other): other for other in self._existing}
        return self._by_metric


def _metric_name(name: str) -> str:
    return name.replace(".", "_")
