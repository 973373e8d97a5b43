"""DescribeUserScramCredentials (50) and AlterUserScramCredentials (51): users that may log in by SCRAM (KIP-554).

The client sends the salted password, which is as good as the password for logging in. Here keys are derived from it,
which are not, and it goes no further: neither to the controller nor into a log line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import structlog

from strandline.cluster.broker.api import Call, Change, by_schema, part
from strandline.cluster.broker.request import Authorizer, require
from strandline.controller import operations
from strandline.controller.channel import ControllerChannel
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.scram_api import AlterScramRequest, ScramDeletion, ScramOutcome, ScramUpsertion
from strandline.proto.acls import CLUSTER, Operation
from strandline.proto.error_codes import ErrorCode
from strandline.proto.kafka.apis import Api
from strandline.proto.scram import ScramMechanism, credential_of
from strandline.proto.steps import Mapped, each

log = structlog.get_logger("strandline.security")


class ScramCredentialsHandler:
    """Describes credentials from this broker's image, and forwards changes to the active controller."""

    def __init__(
        self,
        *,
        image: Callable[[], MetadataImage],
        authorizer: Authorizer,
        controller: ControllerChannel,
        timeout_ms: float,
    ) -> None:
        self._image = image
        self._authorizer = authorizer
        self._controller = controller
        self._timeout_ms = timeout_ms

    def describe(self, call: Call) -> Any:
        """Answer DescribeUserScramCredentials: mechanisms and iterations of the named users, or of all; never a salt or
        a key."""
        require(self._authorizer, call.context, Operation.DESCRIBE, CLUSTER)
        found: dict[str, list[Any]] = {}
        for key, one in sorted(self._image().scram_credentials.items()):
            found.setdefault(key.name, []).append(part(mechanism=int(key.mechanism), iterations=one.iterations))
        asked = Counter(user.name for user in call.request.users or ())

        def described(name: str) -> Any:
            error, message = ErrorCode.NONE, None
            if asked[name] > 1:  # rule A24/users-are-counted-one-by-one
                error = ErrorCode.DUPLICATE_RESOURCE
                message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
            elif name not in found:
                error = ErrorCode.RESOURCE_NOT_FOUND
                message = f"Attempt to describe a user credential that does not exist: {name}"
            infos = tuple(found.get(name, ())) if error is ErrorCode.NONE else ()
            return part(user=name, error_code=error, error_message=message, credential_infos=infos)

        return part(error_code=ErrorCode.NONE, error_message=None, results=Mapped(described, asked or found))

    async def alter(self, call: Call) -> Any:
        """Answer AlterUserScramCredentials: one outcome per user."""
        require(self._authorizer, call.context, Operation.ALTER, CLUSTER)
        request = call.request
        deletions = tuple(ScramDeletion(one.name, one.mechanism) for one in request.deletions)
        upsertions = await call.connection.stepped(each(_upsertion, request.upsertions))
        asked = AlterScramRequest(deletions, tuple(upsertions))
        reply = await self._controller.ask(operations.ALTER_SCRAM, asked, self._timeout_ms)
        for outcome in reply.users:
            if outcome.error is ErrorCode.NONE:
                log.info("SCRAM credentials were changed", user=outcome.name, by=call.context.principal)
        return part(results=Mapped(_outcome, reply.users))

    def refuse_alter(self, call: Call, error: ErrorCode, message: str) -> Any:
        """Return a response with `error` for each user."""
        names = [one.name for one in (*call.request.deletions, *call.request.upsertions)]
        return part(
            results=tuple(
                part(user=name, error_code=error, error_message=message or None) for name in dict.fromkeys(names)
            )
        )


def _outcome(one: ScramOutcome) -> Any:
    return part(user=one.name, error_code=one.error, error_message=one.message or None)


def _upsertion(one: Any) -> ScramUpsertion:
    """Return the upsertion with the derived keys; they are empty, and refused by the controller, if the mechanism is
    unknown or the salted password has the wrong size."""
    stored_key = server_key = b""
    if one.mechanism in ScramMechanism.__members__.values():
        mechanism = ScramMechanism(one.mechanism)
        if len(one.salted_password) == mechanism.key_bytes:
            made = credential_of(mechanism, one.salted_password, one.salt, one.iterations)
            stored_key, server_key = made.stored_key, made.server_key
    return ScramUpsertion(one.name, one.mechanism, one.salt, one.iterations, stored_key, server_key)


def _credentials_altered(request: Any, answer: Any) -> Iterator[Change]:
    for one in answer.results:
        yield f"SCRAM credentials of {one.user}", one.error_code


ROWS = (
    by_schema(Api.DESCRIBE_USER_SCRAM_CREDENTIALS, (0, 0), ScramCredentialsHandler, ScramCredentialsHandler.describe),
    by_schema(
        Api.ALTER_USER_SCRAM_CREDENTIALS,
        (0, 0),
        ScramCredentialsHandler,
        ScramCredentialsHandler.alter,
        refuse=ScramCredentialsHandler.refuse_alter,
        changes=_credentials_altered,
    ),
)
