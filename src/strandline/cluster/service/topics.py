"""Topics as requests name them: by name, by id, and whether a name can be one."""

from __future__ import annotations

import re

from strandline.controller.metadata.image import MetadataImage, TopicInfo
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import ZERO_UUID, TopicId

TOPIC_NAME_MAX = 249
"""Kafka's limit: a directory name of 255 bytes less "-" and a partition number."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def topic_name_fault(name: str) -> str:
    """Why a name cannot be a topic's, or "" if it can (Kafka's `Topic.validate`)."""
    if not name:
        return "a topic name must not be empty"
    if name in (".", ".."):
        return f"a topic cannot be called {name!r}"
    if len(name) > TOPIC_NAME_MAX:
        return f"a topic name has at most {TOPIC_NAME_MAX} characters, this one has {len(name)}"
    if _LEGAL.fullmatch(name) is None:
        return "a topic name consists of ASCII letters, digits, '.', '_' and '-'"
    return ""


def find_topic(image: MetadataImage, name: str | None, topic_id: TopicId | None) -> TopicInfo | ErrorCode:
    """The topic, or the error by which Kafka says that there is none: ids and names have one each."""
    if topic_id is not None and topic_id != ZERO_UUID:
        return image.topic_by_id.get(topic_id, ErrorCode.UNKNOWN_TOPIC_ID)
    if name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    return image.topics.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def create_command(name: str) -> str:
    """What to type to make a topic exist."""
    return f"strandline topic create {name}"
