"""Messages of authorization errors: which principal lacks which right on which resource (rule A31).

Kafka's brokers send only the error code, and many responses have no message field. The client builds the message from
its request.
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
"""Error code -> kind of the resource on which the right is missing."""

_SAYS_NOTHING = "authorization failed"
"""Text in all of Apache Kafka's standard messages for these codes, in lower case. Such a message is replaced."""


def answered(
    config: CommonConfig, api: Api, code: ErrorCode, message: str | None = "", of: str = "", **figures: object
) -> KafkaError:
    """The exception for an error in a response, with a message that names the missing right.

    Args:
        api: the request that was sent.
        message: the broker's message; "" or None if the response has none.
        of: the topic, group or transactional id that the error concerns.
        figures: further attributes of the exception.
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
    """The client's own principal, as far as the client knows it."""
    if config.security_protocol.startswith("SASL"):
        from strandline.client.sasl import user_of

        user = user_of(config)
        return f"User:{user}" if user else "the user of this client's token"
    if config.ssl_keystore_location or config.ssl_keystore_certificate_chain:
        return "the user of this client's certificate"
    return "User:ANONYMOUS (this client shows no login and no certificate)"
