"""Topics as requests name them: by name, by id, and whether a name can be one."""

from __future__ import annotations

from strandline.controller.machine.topic_names import check_topic_name
from strandline.controller.metadata.image import MetadataImage, TopicInfo
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import ZERO_UUID, TopicId


def topic_name_fault(name: str) -> str:
    """Why a name cannot be a topic's, as a sentence, or "" if it can."""
    try:
        check_topic_name(name)
    except KafkaError as error:
        return error.message
    return ""


def find_topic(image: MetadataImage, name: str | None, topic_id: TopicId | None) -> TopicInfo | ErrorCode:
    """The topic, or the error by which Kafka says that there is none: ids and names have one each."""
    if topic_id is not None and topic_id != ZERO_UUID:
        return image.topic_by_id.get(topic_id, ErrorCode.UNKNOWN_TOPIC_ID)
    if name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    return image.topics.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state", "__share_group_state")
"""Topics that the cluster itself writes, and that consumers by pattern leave out (Kafka's `Topic.INTERNAL_TOPICS`)."""


def create_command(name: str) -> str:
    """What to type to make a topic exist."""
    return f"strandline topic create {name}"


NO_TRANSACTIONS = "transactions are not served by this version of Strandline"
