"""SaslHandshake (17) and SaslAuthenticate (36): a client chooses a SASL mechanism, and authenticates by it.

The connection's gate (`strandline.cluster.broker.sasl`) keeps the state. A listener without SASL answers
ILLEGAL_SASL_STATE, as Kafka does.
"""

from __future__ import annotations

from strandline.cluster.broker.api import by_hand
from strandline.cluster.broker.request import Exchange
from strandline.cluster.broker.sasl import authenticate_answer, handshake_answer
from strandline.cluster.security.sasl import Outcome
from strandline.proto.error_codes import ErrorCode
from strandline.proto.kafka import schema
from strandline.proto.kafka.apis import Api

HANDSHAKE_VERSIONS = (0, 1)
AUTHENTICATE_VERSIONS = (0, 2)

NO_SASL = "this listener speaks no SASL; the client should use security.protocol=PLAINTEXT, or SSL where it speaks TLS"


class SaslHandshakeHandler:
    """Answers SaslHandshake with the mechanisms of the listener."""

    def handle(self, exchange: Exchange, body: memoryview) -> None:
        """Start the authentication by the mechanism that the client has chosen."""
        context = exchange.context
        request = schema.request(Api.SASL_HANDSHAKE, context.version).decode(body)
        gate = context.peer.sasl
        if gate is not None:
            gate.handshake(exchange, request.mechanism)
        else:
            exchange.respond([handshake_answer(context.version, ErrorCode.ILLEGAL_SASL_STATE, ())])

    def refuse_all(self, exchange: Exchange, _body: memoryview, error: ErrorCode) -> bool:
        """Answer with `error`."""
        exchange.respond([handshake_answer(exchange.context.version, error, ())])
        return True


class SaslAuthenticateHandler:
    """Answers SaslAuthenticate with the mechanism's next message."""

    def handle(self, exchange: Exchange, body: memoryview) -> None:
        """Handle the client's next message of the mechanism."""
        context = exchange.context
        request = schema.request(Api.SASL_AUTHENTICATE, context.version).decode(body)
        gate = context.peer.sasl
        if gate is not None:
            gate.authenticate(exchange, request.auth_bytes)
        else:
            exchange.respond([authenticate_answer(context.version, Outcome(ErrorCode.ILLEGAL_SASL_STATE, NO_SASL))])

    def refuse_all(self, exchange: Exchange, _body: memoryview, error: ErrorCode) -> bool:
        """Answer with `error`."""
        exchange.respond([authenticate_answer(exchange.context.version, Outcome(error))])
        return True


ROWS = (
    by_hand(Api.SASL_HANDSHAKE, HANDSHAKE_VERSIONS, SaslHandshakeHandler),
    by_hand(Api.SASL_AUTHENTICATE, AUTHENTICATE_VERSIONS, SaslAuthenticateHandler),
)
