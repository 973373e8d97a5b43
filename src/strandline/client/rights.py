"""Answers that a right is missing, in words: who lacks which right on what (rule A31).

Brokers of Kafka say the code alone, and many answers have no place for words. The client knows what it asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from strandline.proto.acls import CLUSTER, Resource, ResourceKind, lacking
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.kafka.apis import Api

if TYPE_CHECKING:
    from strandline.client.config import CommonConfig

DENIED = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: ResourceKind.TOPIC,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: ResourceKind.GROUP,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: ResourceKind.TRANSACTIONAL_ID,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: ResourceKind.CLUSTER,
}
"""Code -> what the right is about."""

_SAYS_NOTHING = "authorization failed"
"""In the words that Apache Kafka has for the codes."""


def answered(
    config: CommonConfig, api: Api, code: ErrorCode, message: str | None = "", of: str = "", **figures: object
) -> KafkaError:
    """The error of an answer.

    Args:
        message: the broker's words, where the answer has any.
        of: the topic, the group or the transactional id that it is about.
    """
    kind = DENIED.get(code)
    if kind is not None and (not message or _SAYS_NOTHING in message.lower()):
        from strandline.proto.kafka.access import ACCESS

        resource = CLUSTER if kind is ResourceKind.CLUSTER else Resource(kind, of)
        asked = [one.operation for one in ACCESS.get(api, ()) if one.kind is kind]
        if asked and resource.name:  # rule A31/answers-without-words-stay-so
            message = lacking(_who(config), asked[0], resource)
    return KafkaError(code, message or "", **figures)


def _who(config: CommonConfig) -> str:
    """The principal, as far as a client knows its own."""
    if config.security_protocol.startswith("SASL"):
        from strandline.client.sasl import user_of

        user = user_of(config)
        return f"User:{user}" if user else "the user of this client's token"
    if config.ssl_keystore_location or config.ssl_keystore_certificate_chain:
        return "the user of this client's certificate"
    return "User:ANONYMOUS (this client shows no login and no certificate)"
