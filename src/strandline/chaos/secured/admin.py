"""The admin: gives and takes rights, rotates and removes passwords, sets quotas, and writes down what was answered."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from strandline.chaos.checkers.rights import PASSWORD, Key, Rights, Value
from strandline.chaos.secured.options import (
    ADMIN,
    ALL_GROUPS,
    ALL_TOPICS,
    CLIENT,
    GUARDED,
    GUEST,
    MECHANISM,
    PARTITIONS,
    READ,
    WRITE,
    SecuredOptions,
    binding_of,
    entity_of,
    filter_of,
    is_quota,
    login,
    next_value,
)
from strandline.chaos.workload import Ports
from strandline.client.aio import Admin, Producer
from strandline.client.types import NewTopic, ScramChange
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, StrandlineError

LOGIN = login(ADMIN, f"{ADMIN}:1")

_ONE_ATTEMPT: dict[str, Any] = {
    "request_timeout_ms": 2_000,
    "default_api_timeout_ms": 4_000,
    "retry_backoff_ms": 10_000,
    "retry_backoff_max_ms": 10_000,
}
"""A call goes out once: what is repeated is written down as another attempt."""

_UNANSWERED_FIRST = 0.5
"""Share of changes that repeat one that has no answer, where there is one."""


class Administration:
    """State of the admin over the whole run.

    Attributes:
        prepared: the topic is there, and all users.
        calm: faults have ended; nothing new is changed.
        done: so they have, and everything is answered.
        errors: what the admin met, counted: for the figures of a run.
    """

    def __init__(self, bootstrap: str, options: SecuredOptions, rights: Rights, now_ms: Callable[[], float]) -> None:
        self.prepared = False
        self.calm = False
        self.done = False
        self.errors: Counter[str] = Counter()
        self._bootstrap = bootstrap
        self._options = options
        self._rights = rights
        self._now_ms = now_ms

    def failed(self, error: StrandlineError) -> None:
        """Count what the admin met."""
        self.errors[error.code.name if isinstance(error, KafkaError) else type(error).__name__] += 1

    # --- before the faults ---

    async def prepare(self, ports: Ports) -> None:
        """Make the guarded topic with a record in each partition, all users with passwords, and some rights."""
        rng = ports.rng
        first: list[tuple[Key, Value]] = [
            (Key(PASSWORD, name), f"{name}:1") for name in (CLIENT, GUEST, *self._options.names)
        ]
        first += [(Key(kind, CLIENT), True) for kind in (ALL_TOPICS, ALL_GROUPS)]
        first += [
            (Key(kind, name), True) for name in self._options.names for kind in (WRITE, READ) if rng.random() < 0.5
        ]
        async with Admin(self._bootstrap, clock=ports.clock, rng=rng, **LOGIN) as admin:
            await self._until_done(self._create, admin)
            for key, value in first:
                await self._until_done(self._change, admin, key, value)
        producer = Producer(self._bootstrap, clock=ports.clock, rng=rng, **LOGIN)
        for partition in range(PARTITIONS):
            ack = await producer.send_and_wait(GUARDED, f"{ADMIN}:{partition}".encode(), partition=partition)
            self._rights.stored[ack.partition, ack.offset] = f"{ADMIN}:{partition}"
        await producer.close()
        self.prepared = True

    @staticmethod
    async def _until_done(attempt: Callable[..., Awaitable[bool]], *given: Any) -> None:
        while True:
            if await attempt(*given):
                return
            await asyncio.sleep(0.1)

    async def _create(self, admin: Admin) -> bool:
        try:
            await admin.create_topics([NewTopic(GUARDED, PARTITIONS, 3, {"min.insync.replicas": "2"})])
        except StrandlineError as error:
            self.failed(error)
            return isinstance(error, KafkaError) and error.code is ErrorCode.TOPIC_ALREADY_EXISTS
        return True

    # --- while faults strike ---

    async def work(self, ports: Ports) -> None:
        """Change one thing after the other; then repeat what has no answer, until it has one."""
        rng, rights = ports.rng, self._rights
        settings = LOGIN | _ONE_ATTEMPT
        async with Admin(self._bootstrap, clock=ports.clock, rng=rng, **settings) as admin:
            while not (self.calm and not rights.unanswered):
                await asyncio.sleep(rng.expovariate(1000 / self._options.change_gap_ms))
                waiting = rights.unanswered
                if waiting and (self.calm or rng.random() < _UNANSWERED_FIRST):
                    key = rng.choice(waiting)
                    last = rights.last(key)
                    assert last is not None
                    await self._change(admin, key, last.value)
                    continue
                quiet = [key for key in self._options.changing if rights.is_quiet(key, self._now_ms())]
                if quiet and not self.calm:
                    key = rng.choice(quiet)
                    last = rights.last(key)
                    value = next_value(key, last and last.value, len(rights.changes.get(key, ())) + 1, rng)
                    await self._change(admin, key, value)
        self.done = True

    async def _change(self, admin: Admin, key: Key, value: Value) -> bool:
        """Make one attempt at a change; returns whether it was answered."""
        change = self._rights.ask(key, value, self._now_ms())
        try:
            await self._apply(admin, key, value)
            change.answered = True
        except StrandlineError as error:
            # Nothing to remove: an attempt before this one did it.
            gone = isinstance(error, KafkaError) and error.code is ErrorCode.RESOURCE_NOT_FOUND
            change.answered = gone and value is None
            if not change.answered:
                self.failed(error)
        finally:
            change.ended_ms = self._now_ms()
        return change.answered

    @staticmethod
    async def _apply(admin: Admin, key: Key, value: Value) -> None:
        if key.kind == PASSWORD:
            password = None if value is None else str(value)
            await admin.alter_scram_credentials({key.who: [ScramChange(MECHANISM, password)]})
        elif is_quota(key):
            amount = None if value is None else float(value)
            await admin.alter_client_quotas({entity_of(key): {key.kind: amount}})
        elif value:
            await admin.create_acls([binding_of(key)])
        else:
            await admin.delete_acls([filter_of(binding_of(key))])
