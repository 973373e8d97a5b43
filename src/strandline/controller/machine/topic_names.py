"""Which names a topic may have (Kafka's rules)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError

MAX_NAME_LENGTH = 249
"""A file name may have 255 bytes; a partition's directory is the topic's name, a dash and the partition's number."""

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


def check_collision(name: str, existing: Iterable[str]) -> None:
    """Metric names turn '.' into '_', so that two topics may not differ in these alone.

    Raises:
        KafkaError: INVALID_TOPIC_EXCEPTION, naming the topic it collides with.
    """
    unified = name.replace(".", "_")
    if "_" not in unified:
        return
    for other in existing:
        if other != name and other.replace(".", "_") == unified:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"The topic name {name!r} collides with the existing topic {other!r}: "
                "they differ in '.' and '_' alone.",
            )
