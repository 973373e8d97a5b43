"""What every part of the admin client does: asks brokers, and asks again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Self, TypeVar, Unpack

from strandline.client.config import AdminConfig
from strandline.client.errors import ManyErrors
from strandline.client.leaders import Leaders
from strandline.client.limits import Limit, note
from strandline.client.network import CONTROL
from strandline.client.session import Session
from strandline.client.settings import AdminSettings
from strandline.client.types import NodeInfo
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, StrandlineError
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.fields import Unencodable
from strandline.proto.ports import Clock, Rng

NEW_TOPIC_GRACE_MS = 500
"""How long an unknown topic is asked for again: a broker may not have heard yet of one that was just created."""

T = TypeVar("T")

_SEND_AGAIN = frozenset(
    {
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.BROKER_NOT_AVAILABLE,
    }
)


class AdminBase:
    """Connections, and questions that are repeated while a repetition may help."""

    def __init__(
        self,
        bootstrap: str | Sequence[str] = "127.0.0.1:9092",
        *,
        clock: Clock | None = None,
        rng: Rng | None = None,
        **settings: Unpack[AdminSettings],
    ) -> None:
        self.config = AdminConfig(settings)
        self.session = Session(bootstrap, self.config, clock=clock, rng=rng)
        self._network = self.session.network
        self._metadata = self.session.metadata
        self._clock = self.session.clock
        self._leaders = Leaders(self.session, self.config.request_timeout_ms)

    def _limit(self) -> Limit:
        """Of a call that begins now. Raises ClosedError, ClientError: this client cannot be called here."""
        self.session.check()
        timeout_ms = self.config.default_api_timeout_ms
        return Limit(timeout_ms, f"no answer within default.api.timeout.ms={timeout_ms}")

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        await self.session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- inside -----------------------------------------------------------------------------------------------------

    async def _call(
        self,
        api: Api,
        values: Mapping[str, Any],
        codes: Callable[[Any], list[ErrorCode]],
        node_id: int | None = None,
    ) -> Any:
        """One request to any broker (or to `node_id`); sent again while it meets NOT_CONTROLLER and the like."""

        async def ask() -> Any:
            if node_id is None:
                connection = await self._network.to_any(self._controller_first())
            else:
                connection = await self._network.to_node(await self._node(node_id), CONTROL)
            answer = await connection.call(api, values, self.config.request_timeout_ms)
            again = [code for code in codes(answer) if code in _SEND_AGAIN]
            if again:
                await self._metadata.update(self.config.request_timeout_ms)
                raise KafkaError(again[0], f"{connection.endpoint} answered {api.name} so")
            return answer

        return await self._retrying(ask)

    async def _retrying(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Until the limit of the call, see `limited`."""
        failures = 0
        while True:
            try:
                return await ask()
            except KafkaError as error:
                if not error.retriable:
                    raise
                note(error)
            except Unencodable:
                raise
            except StrandlineError as error:
                note(error)
            failures += 1
            await asyncio.sleep(self.session.backoff_ms(failures) / 1000)

    async def _while_unknown(self, ask: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        """Ask until no topic is unknown (what `ask` returns says whether one is), for NEW_TOPIC_GRACE_MS at most."""
        until_ms = self._clock.monotonic_ms() + NEW_TOPIC_GRACE_MS
        while True:
            if not await ask() or self._clock.monotonic_ms() >= until_ms:
                return
            await asyncio.sleep(self.config.retry_backoff_ms / 1000)

    def _controller_first(self) -> list[NodeInfo]:
        nodes = list(self._metadata.nodes.values())
        return sorted(nodes, key=lambda node: node.node_id != self._metadata.controller_id)

    async def _node(self, node_id: int) -> NodeInfo:
        if node_id not in self._metadata.nodes:
            await self._metadata.update(self.config.request_timeout_ms)
        node = self._metadata.nodes.get(node_id)
        if node is None:
            if self._metadata.last_error is not None:
                raise self._metadata.last_error
            known = ", ".join(str(number) for number in sorted(self._metadata.nodes))
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"there is no broker {node_id}; the brokers are {known}")
        return node


def results_of(results: dict[Any, T], errors: Mapping[Any, Exception]) -> dict[Any, T]:
    """The results, unless something failed: the one error of the one question, or ManyErrors."""
    if len(errors) == 1 and not results:
        raise next(iter(errors.values()))
    if errors:
        raise ManyErrors(results, errors)
    return results
