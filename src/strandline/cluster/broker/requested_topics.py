"""Topics as requests name them: by name or by id, found or not, and whether the principal may see them."""

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
    """Reason a name cannot be a topic's, as a sentence, or ""."""
    try:
        check_topic_name(name)
    except KafkaError as error:
        return error.message
    return ""


def create_command(name: str) -> str:
    """Command to type that creates a topic."""
    return f"strandline topic create {name}"


def find_topic(image: MetadataImage, name: str | None, topic_id: TopicId | None) -> TopicInfo | ErrorCode:
    """The topic, or the error by which Kafka says that there is none: ids and names have one each."""
    if topic_id is not None and topic_id != ZERO_UUID:
        return image.topic_by_id.get(topic_id, ErrorCode.UNKNOWN_TOPIC_ID)
    if name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    return image.topics.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


class TopicRef(NamedTuple):
    """A topic asked for, by name or by id."""

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
    """The topic, if the principal may do this with it.

    By name it is asked before anybody looks whether the topic exists. By id the answer tells that it exists only to a
    principal that may describe it.
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
    """True if the principal may know that there is a topic of this name."""
    return allowed(authorizer, context, Operation.DESCRIBE, topic(name), noted=False)


class DescribedTopic(NamedTuple):
    """A topic as found, or the reference and why it was not."""

    ref: TopicRef
    info: TopicInfo | None
    error: ErrorCode = ErrorCode.NONE


def describe_topic(
    authorizer: Authorizer, context: RequestContext, image: MetadataImage, ref: TopicRef, *, noted: bool = True
) -> DescribedTopic:
    """One topic, if the principal may see it."""
    found = find_allowed_topic(authorizer, context, image, ref, Operation.DESCRIBE, noted=noted)
    if not isinstance(found, ErrorCode):
        return DescribedTopic(ref, found)
    seen = found is not ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if seen and ref.name is not None and topic_name_fault(ref.name):
        return DescribedTopic(ref, None, ErrorCode.INVALID_TOPIC_EXCEPTION)
    return DescribedTopic(ref, None, found)


class OffsetAccess:
    """Topics that a request about a group's offsets may touch, by the newest image and the authorizer."""

    def __init__(self, image: Callable[[], MetadataImage], authorizer: Authorizer) -> None:
        self._image = image
        self._authorizer = authorizer

    def check_group(self, context: RequestContext, operation: Operation, group_id: str) -> None:
        """Raises KafkaError GROUP_AUTHORIZATION_FAILED. An empty name is fine: offsets were committed under it long
        ago."""
        require(self._authorizer, context, operation, group(group_id))

    def find_topic(
        self,
        context: RequestContext,
        name: str | None,
        topic_id: TopicId | None,
        operation: Operation = Operation.READ,
    ) -> tuple[TopicInfo | None, ErrorCode]:
        """(topic, NONE), or (None, why not)."""
        found = find_allowed_topic(self._authorizer, context, self._image(), TopicRef(name, topic_id), operation)
        return (None, found) if isinstance(found, ErrorCode) else (found, ErrorCode.NONE)
