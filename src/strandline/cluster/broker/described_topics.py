"""Topics as a request names them, found or not."""

from __future__ import annotations

from typing import NamedTuple

from strandline.cluster.broker.request import Authorizer, Operation, RequestContext, allowed, topic
from strandline.cluster.broker.topic_names import find_topic, topic_name_fault
from strandline.controller.metadata.image import MetadataImage, TopicInfo
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import TopicId

OPERATIONS_NOT_ASKED = -(2**31)


class TopicRef(NamedTuple):
    """A topic asked for, by name or by id."""

    name: str | None
    topic_id: TopicId | None = None


class DescribedTopic(NamedTuple):
    """A topic as found, or the reference and why it was not."""

    ref: TopicRef
    info: TopicInfo | None
    error: ErrorCode = ErrorCode.NONE


def describe_topic(
    authorizer: Authorizer, context: RequestContext, image: MetadataImage, ref: TopicRef
) -> DescribedTopic:
    """One topic, if the principal may see it."""
    found = find_topic(image, ref.name, ref.topic_id)
    name = ref.name if isinstance(found, ErrorCode) else found.name
    if name is not None and not allowed(authorizer, context, Operation.DESCRIBE, topic(name)):
        # By id the answer must not tell that the topic exists.
        error = ErrorCode.UNKNOWN_TOPIC_ID if ref.name is None else ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return DescribedTopic(ref, None, error)
    if not isinstance(found, ErrorCode):
        return DescribedTopic(ref, found)
    if ref.name is not None and topic_name_fault(ref.name):
        return DescribedTopic(ref, None, ErrorCode.INVALID_TOPIC_EXCEPTION)
    return DescribedTopic(ref, None, found)
