"""The broker that coordinates a group, or the transactions of a transactional.id: found and asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from strandline.client.errors import ClosedError, TopicReplaced
from strandline.client.limits import Limit, note
from strandline.client.network import CONTROL, Connection
from strandline.client.rights import answered
from strandline.client.session import Session
from strandline.client.types import NodeInfo
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, StrandlineError
from strandline.proto.kafka.apis import Api

T = TypeVar("T")

GROUP = 0
TRANSACTION = 1
_KINDS = {GROUP: "group", TRANSACTION: "transactional.id"}

_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


class Coordinator:
    """Asks the coordinator of one group, or one transactional.id. Runs on one event loop."""

    def __init__(self, session: Session, key: str, kind: int, request_timeout_ms: int) -> None:
        self.key = key
        self.node: NodeInfo | None = None
        self._kind = kind
        self._session = session
        self._request_timeout_ms = request_timeout_ms

    async def find(self) -> NodeInfo:
        """The coordinator, looked up if it is not known.

        Raises:
            KafkaError: COORDINATOR_NOT_AVAILABLE and the like (retriable), GROUP_AUTHORIZATION_FAILED,
                TRANSACTIONAL_ID_AUTHORIZATION_FAILED.
            ClientError: no broker answers.
        """
        if self.node is None:
            metadata, network = self._session.metadata, self._session.network
            connection = await network.to_any(list(metadata.nodes.values()))
            values = {"key": self.key, "key_type": self._kind, "coordinator_keys": [self.key]}
            answer = await connection.call(Api.FIND_COORDINATOR, values, self._request_timeout_ms)
            entry = answer.coordinators[0] if hasattr(answer, "coordinators") else answer
            if entry.error_code is not ErrorCode.NONE:
                words = getattr(entry, "error_message", None)
                self.check(Api.FIND_COORDINATOR, entry.error_code, words)
            self.node = NodeInfo(entry.node_id, entry.host, entry.port)
        return self.node

    async def connection(self, purpose: str = CONTROL) -> Connection:
        """A connection to it; one that does not answer is looked up anew.

        Raises:
            StrandlineError: no broker answered.
        """
        node = await self.find()
        try:
            return await self._session.network.to_node(node, purpose)
        except KafkaError:
            raise
        except StrandlineError:
            self._forget(node)
            raise

    async def call(
        self,
        api: Api,
        values: Mapping[str, Any],
        *,
        timeout_ms: float | None = None,
        purpose: str = CONTROL,
        at_most: int | None = None,
    ) -> Any:
        """One request to the coordinator; one that does not answer is looked up anew.

        Raises:
            StrandlineError: no broker answered; error codes inside the answer are the caller's.
        """
        node = await self.find()
        try:
            connection = await self._session.network.to_node(node, purpose)
            return await connection.call(api, values, timeout_ms or self._request_timeout_ms, at_most)
        except KafkaError:
            raise
        except StrandlineError:
            self._forget(node)
            raise

    def check(self, api: Api, code: ErrorCode, words: str | None = "", *, topic: str = "", **details: object) -> None:
        """Raise the error of an answer, if it is one; a coordinator that is none any more is forgotten.

        Args:
            words: the coordinator's, where the answer has any.
            topic: the topic that the answer is about, if it is about one.
        """
        if code is not ErrorCode.NONE:
            if code in _MOVED:
                self.node = None
            about = topic if code is ErrorCode.TOPIC_AUTHORIZATION_FAILED else self.key
            details = {_KINDS[self._kind].replace(".", "_"): self.key, **details}
            raise answered(self._session.config, api, code, words, of=about, **details)

    def _forget(self, node: NodeInfo) -> None:
        if self.node is node:
            self.node = None
            self._session.metadata.suspect(node.node_id)

    async def retrying(self, attempt: Callable[[], Awaitable[T]], timeout_ms: float) -> T:
        """Repeat `attempt` until it succeeds or fails for good, and return its result.

        Raises:
            KafkaError, TopicReplaced: what a retry does not mend.
            ClientTimeout: it took longer; `last_error` says why.
        """
        words = f"{_KINDS[self._kind]} {self.key}: no answer within {timeout_ms:.0f} ms"
        return await Limit(timeout_ms, words).keep(self._retrying(attempt))

    async def _retrying(self, attempt: Callable[[], Awaitable[T]]) -> T:
        failures = 0
        while True:
            try:
                return await attempt()
            except KafkaError as error:
                if not error.retriable:
                    raise
                note(error)
            except (ClosedError, TopicReplaced):
                raise
            except StrandlineError as error:
                note(error)
            failures += 1
            await asyncio.sleep(self._session.backoff_ms(failures) / 1000)
