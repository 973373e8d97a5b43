"""Look-up of the topics that requests name, by name or by id, with the check whether the principal may see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from strandline.cluster.broker.request import Authorizer, RequestContext, allowed, group, require, topic
from strandline.controller.machine.topic_names import check_topic_name
from strandline.controller.metadata.image import MetadataImage, TopicInfo
from strandline.proto.acls import Operation
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import ZERO_UUID, TopicId


def topic_name_fault(name: str) -> str:
    """Return why a topic cannot have this name, as a sentence, or "" if it can."""
    try:
        check_topic_name(name)
    except KafkaError as error:
        return error.message
    return ""


def create_command(name: str) -> str:
    """Return the command that creates a topic, for error messages."""
    return f"strandline topic create {name}"


def find_topic(image: MetadataImage, name: str | None, topic_id: TopicId | None) -> TopicInfo | ErrorCode:
    """Return the topic, or Kafka's error for an unknown id or an unknown name."""
    if topic_id is not None and topic_id != ZERO_UUID:
        return image.topic_by_id.get(topic_id, ErrorCode.UNKNOWN_TOPIC_ID)
    if name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    return image.topics.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


class TopicRef(NamedTuple):
    """Reference to a topic in a request, by name or by id."""

    name: str | None
    topic_id: TopicId | None = None


def find_allowed_topic(
    authorizer: Authorizer,
    context: RequestContext,
    image: MetadataImage,
    ref: TopicRef,
    operation: Operation,
    *,
    noted: bool = True,
) -> TopicInfo | ErrorCode:
    """Return the topic if the principal may do the operation on it, else an error.

    The error tells nothing that the principal may not know: for a name, the right is checked first, and decides the
    error whether or not the topic exists; for an id, only a principal that may DESCRIBE the topic gets another error
    than UNKNOWN_TOPIC_ID. `noted`: see `Authorizer.authorize`.
    """
    found = find_topic(image, ref.name, ref.topic_id)
    name = ref.name if isinstance(found, ErrorCode) else found.name
    # rule A20/unknown-before-forbidden
    if name is None or allowed(authorizer, context, operation, topic(name), noted=noted):
        return found
    by_name = ref.name is not None
    if by_name or (operation is not Operation.DESCRIBE and may_see(authorizer, context, name)):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return ErrorCode.UNKNOWN_TOPIC_ID  # rule A20/ids-tell-that-a-topic-exists


def may_see(authorizer: Authorizer, context: RequestContext, name: str) -> bool:
    """Return whether the principal may DESCRIBE a topic of this name, and so may know whether it exists."""
    return allowed(authorizer, context, Operation.DESCRIBE, topic(name), noted=False)


class DescribedTopic(NamedTuple):
    """A topic of a request: found (`info`), or not found or not allowed (`error`)."""

    ref: TopicRef
    info: TopicInfo | None
    error: ErrorCode = ErrorCode.NONE


def describe_topic(
    authorizer: Authorizer, context: RequestContext, image: MetadataImage, ref: TopicRef, *, noted: bool = True
) -> DescribedTopic:
    """Look up one topic, with the error INVALID_TOPIC_EXCEPTION, an error of `find_allowed_topic`, or NONE."""
    found = find_allowed_topic(authorizer, context, image, ref, Operation.DESCRIBE, noted=noted)
    if not isinstance(found, ErrorCode):
        return DescribedTopic(ref, found)
    seen = found is not ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if seen and ref.name is not None and topic_name_fault(ref.name):
        return DescribedTopic(ref, None, ErrorCode.INVALID_TOPIC_EXCEPTION)
    return DescribedTopic(ref, None, found)


class OffsetAccess:
    """Checks of groups and topics in requests about committed offsets, by the newest image and the authorizer."""

    def __init__(self, image: Callable[[], MetadataImage], authorizer: Authorizer) -> None:
        self._image = image
        self._authorizer = authorizer

    def check_group(self, context: RequestContext, operation: Operation, group_id: str) -> None:
        """Raises KafkaError GROUP_AUTHORIZATION_FAILED. An empty group id is accepted, as old clients committed offsets
        under it."""
        require(self._authorizer, context, operation, group(group_id))

    def find_topic(
        self,
        context: RequestContext,
        name: str | None,
        topic_id: TopicId | None,
        operation: Operation = Operation.READ,
    ) -> tuple[TopicInfo | None, ErrorCode]:
        """Return (topic, NONE), or (None, error)."""
        found = find_allowed_topic(self._authorizer, context, self._image(), TopicRef(name, topic_id), operation)
        return (None, found) if isinstance(found, ErrorCode) else (found, ErrorCode.NONE)
