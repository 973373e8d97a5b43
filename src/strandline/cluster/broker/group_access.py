"""What a request about a group's offsets names, and whether it may."""

from __future__ import annotations

from collections.abc import Callable

from strandline.cluster.broker.request import Authorizer, Operation, RequestContext, allowed, group, topic
from strandline.cluster.broker.topic_names import find_topic
from strandline.controller.metadata.image import MetadataImage, TopicInfo
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicId


class GroupAccess:
    """Judges by the newest image and the authorizer."""

    def __init__(self, image: Callable[[], MetadataImage], authorizer: Authorizer) -> None:
        self._image = image
        self._authorizer = authorizer

    def check_group(self, context: RequestContext, operation: Operation, group_id: str) -> None:
        """Raises KafkaError GROUP_AUTHORIZATION_FAILED. An empty name is fine: offsets were committed under it long
        ago."""
        if not allowed(self._authorizer, context, operation, group(group_id)):
            raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)

    def find_topic(
        self,
        context: RequestContext,
        name: str | None,
        topic_id: TopicId | None,
        operation: Operation = Operation.READ,
    ) -> tuple[TopicInfo | None, ErrorCode]:
        """(topic, NONE), or (None, why not)."""
        found = find_topic(self._image(), name, topic_id)
        known = name if isinstance(found, ErrorCode) else found.name
        if known is not None and not allowed(self._authorizer, context, operation, topic(known)):
            # By id the answer must not tell that the topic exists.
            return None, ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return (None, found) if isinstance(found, ErrorCode) else (found, ErrorCode.NONE)
