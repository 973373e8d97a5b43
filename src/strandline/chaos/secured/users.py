"""Simulated users of a secured cluster: they log in, write and read with valid, former, future or guessed passwords."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any

from strandline.chaos.checkers.invariant import InvariantViolated
from strandline.chaos.checkers.rights import PASSWORD, Key, Rights, superseded
from strandline.chaos.secured.options import (
    CLIENT,
    GUARDED,
    GUEST,
    MECHANISM,
    NOBODY,
    PARTITIONS,
    READ,
    WRITE,
    SecuredOptions,
    login,
)
from strandline.chaos.workload import Ports
from strandline.client.aio import Consumer, Producer
from strandline.client.config import parse_bootstrap
from strandline.client.errors import AuthenticationFailed, Disconnected
from strandline.client.network import Connection, connect
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, StrandlineError
from strandline.proto.ids import Endpoint
from strandline.proto.kafka.apis import Api
from strandline.proto.scram import NONCE_BITS, SaltedPasswords, ScramClient, ScramMechanism, nonce_of

_SHORT: dict[str, Any] = {"request_timeout_ms": 2_000, "socket_connection_setup_timeout_ms": 2_000}
_WRITES: dict[str, Any] = _SHORT | {
    "enable_idempotence": False,
    "retries": 0,
    "linger_ms": 0,
    "delivery_timeout_ms": 4_000,
    "max_block_ms": 3_000,
}
"""One attempt: what is refused is nowhere."""
_READS: dict[str, Any] = _SHORT | {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 100, "check_crcs": False}

_PATIENCE_MS = 2_000.0
_WITHOUT_LOGIN = 0.1
"""Share of clients that try without a login."""

PLAIN_TOPIC = "alpha"
"""Topic of the plain clients."""

GUESSES = ((CLIENT, f"{CLIENT}:2"), (NOBODY, f"{NOBODY}:1"))
"""Pairs of user and password that are never set."""


class Attempt(Enum):
    """Result of an attempt."""

    IN = "in"
    REFUSED = "refused"
    NOTHING = "nothing"
    """No answer, or an error that tells nothing about the right."""


class Users:
    """All simulated users of a run, with what came of their attempts.

    Attributes:
        came: number of attempts by what was tried and its result, for the figures of the run.
    """

    def __init__(self, bootstrap: str, options: SecuredOptions, rights: Rights) -> None:
        self.came: Counter[str] = Counter()
        self._bootstrap = bootstrap
        self._brokers = parse_bootstrap(bootstrap)
        self._options = options
        self._rights = rights
        self._salted: dict[str, SaltedPasswords] = {}
        self._written = 0

    # --- while faults strike ---

    async def knock(self, ports: Ports) -> None:
        """Log in at random brokers until cancelled: with passwords that are, were or will be set, and with guesses."""
        rng = ports.rng
        while True:
            await asyncio.sleep(rng.expovariate(1000 / self._options.use_gap_ms))
            name = rng.choice(self._options.names)
            known = [str(value) for value in self._rights.asked(Key(PASSWORD, name)) if value is not None]
            if rng.random() < _WITHOUT_LOGIN:
                await self.stay_unknown(ports, rng.choice(self._brokers))
                continue
            after = f"{name}:{len(self._rights.changes[Key(PASSWORD, name)]) + 1}"
            user, password = rng.choice((*GUESSES, (name, after), (name, rng.choice(known)), (GUEST, f"{GUEST}:1")))
            await self.log_in(ports, rng.choice(self._brokers), user, password)

    async def use(self, ports: Ports) -> None:
        """Write and read until cancelled, each time with a new client."""
        rng = ports.rng
        while True:
            await asyncio.sleep(rng.expovariate(1000 / self._options.use_gap_ms))
            user = rng.choice((*self._options.names, GUEST))
            password = self._newest_password(user)
            topic = PLAIN_TOPIC if user == GUEST and rng.random() < 0.5 else GUARDED
            partition = rng.randrange(PARTITIONS) if topic == GUARDED else 0
            attempt = self.write if rng.random() < 0.5 else self.read
            await attempt(ports, user, password, partition, topic)

    def _newest_password(self, user: str) -> str:
        return [str(value) for value in self._rights.asked(Key(PASSWORD, user)) if value is not None][-1]

    # --- attempts ---

    def _count(self, what: str, came: Attempt) -> Attempt:
        self.came[f"{what}: {came.value}"] += 1
        return came

    async def log_in(self, ports: Ports, where: Endpoint, user: str, password: str) -> Attempt:
        """Log in at one broker, without a check of the broker's own proof, which an honest client makes. Raises
        InvariantViolated (NobodyGetsIn) if a password is accepted that was never set."""
        salted = self._salted.setdefault(password, SaltedPasswords(password))
        scram = ScramClient(ScramMechanism.SHA_256, user, salted, nonce_of(ports.rng.getrandbits(NONCE_BITS)))
        try:
            connection = await connect(where, "knocks", setup_timeout_ms=_PATIENCE_MS, request_timeout_ms=_PATIENCE_MS)
            try:
                await connection.call(Api.SASL_HANDSHAKE, {"mechanism": MECHANISM}, _PATIENCE_MS)
                challenge = await self._token(connection, scram.first())
                answer = await self._token(connection, scram.final(bytes(challenge.auth_bytes)))
            finally:
                connection.close()
        except StrandlineError:
            return self._count("login", Attempt.NOTHING)
        if answer.error_code is ErrorCode.SASL_AUTHENTICATION_FAILED:
            return self._count("login", Attempt.REFUSED)
        if answer.error_code is not ErrorCode.NONE:
            return self._count("login", Attempt.NOTHING)
        self._rights.check_opened(user, password)
        return self._count("login", Attempt.IN)

    @staticmethod
    async def _token(connection: Connection, token: bytes) -> Any:
        return await connection.call(Api.SASL_AUTHENTICATE, {"auth_bytes": token}, _PATIENCE_MS)

    async def stay_unknown(self, ports: Ports, where: Endpoint) -> Attempt:
        """Send a request without a login. Raises InvariantViolated (NobodyGetsIn) if it is answered."""
        asks = {"components": (), "strict": False}
        try:
            connection = await connect(where, "unknown", setup_timeout_ms=_PATIENCE_MS, request_timeout_ms=_PATIENCE_MS)
            try:
                await connection.call(Api.DESCRIBE_CLIENT_QUOTAS, asks, _PATIENCE_MS)
            finally:
                connection.close()
        except Disconnected:
            return self._count("no login", Attempt.REFUSED)
        except StrandlineError:
            return self._count("no login", Attempt.NOTHING)
        raise InvariantViolated("NobodyGetsIn", "a broker answered without a login", broker=str(where))

    async def write(self, ports: Ports, user: str, password: str, partition: int, topic: str = GUARDED) -> Attempt:
        """Try to write a record. Raises InvariantViolated (NobodyGetsIn) if a user succeeds who never had the right."""
        self._written += 1
        value = f"{user}:{self._written}"
        producer = Producer(self._bootstrap, clock=ports.clock, rng=ports.rng, **_WRITES, **login(user, password))
        try:
            ack = await producer.send_and_wait(topic, value.encode(), partition=partition)
        except StrandlineError as error:
            refused = _is_refusal(error)
            if refused:
                self._rights.denied[value] = None
            return self._count("write", Attempt.REFUSED if refused else Attempt.NOTHING)
        finally:
            await _closed(producer)
        self._rights.check_used(user, WRITE, topic=topic, value=value)
        self._rights.stored[ack.partition, ack.offset] = value
        return self._count("write", Attempt.IN)

    async def read(self, ports: Ports, user: str, password: str, partition: int, topic: str = GUARDED) -> Attempt:
        """Try to read records. Raises InvariantViolated (NobodyGetsIn) if a user succeeds who never had the right."""
        consumer = Consumer(self._bootstrap, clock=ports.clock, rng=ports.rng, **_READS, **login(user, password))
        try:
            consumer.assign([(topic, partition)])
            records = await consumer.poll(2.0)
        except StrandlineError as error:
            return self._count("read", Attempt.REFUSED if _is_refusal(error) else Attempt.NOTHING)
        finally:
            await _closed(consumer)
        if not records:
            return self._count("read", Attempt.NOTHING)
        self._rights.check_used(user, READ, topic=topic)
        return self._count("read", Attempt.IN)

    # --- once every node has caught up ---

    async def try_all(self, ports: Ports) -> None:
        """Check that each broker accepts every valid password and no other one, and that each leader checks rights.
        Raises InvariantViolated."""
        for where in self._brokers:
            await self._must_be(Attempt.REFUSED, self.stay_unknown, ports, where)
            for user, password in GUESSES:
                await self._must_be(Attempt.REFUSED, self.log_in, ports, where, user, password)
            for user in (CLIENT, GUEST, *self._options.names):
                await self._try_passwords(ports, where, user)
        for user in (GUEST, *self._options.names):
            await self._try_rights(ports, user)

    async def _try_passwords(self, ports: Ports, where: Endpoint, user: str) -> None:
        for old in superseded(self._rights, user):
            await self._must_be(Attempt.REFUSED, self.log_in, ports, where, user, old)
        password = self._rights.certain(Key(PASSWORD, user))
        if password is not None and password[0] is not None:
            await self._must_be(Attempt.IN, self.log_in, ports, where, user, str(password[0]))

    async def _try_rights(self, ports: Ports, user: str) -> None:
        password = self._rights.certain(Key(PASSWORD, user))
        if password is None or password[0] is None:
            return
        for right, attempt in ((WRITE, self.write), (READ, self.read)):
            given = self._rights.certain(Key(right, user))
            if given is None:
                continue
            wanted = Attempt.IN if given[0] else Attempt.REFUSED
            for partition in range(PARTITIONS):
                await self._must_be(wanted, attempt, ports, user, str(password[0]), partition)

    async def _must_be(self, wanted: Attempt, attempt: Callable[..., Awaitable[Attempt]], *given: Any) -> None:
        while True:
            came = await attempt(*given)
            if came is wanted:
                return
            if came is not Attempt.NOTHING:
                name = "NobodyIsKeptOut" if wanted is Attempt.IN else "NobodyGetsIn"
                asked = {str(key): self._rights.history(key) for key in self._rights.changes if key.who in given}
                facts = {"tried": " ".join(str(one) for one in given[1:]), "asked": asked}
                raise InvariantViolated(name, f"a {attempt.__name__} is {came.value}, not {wanted.value}", **facts)
            await asyncio.sleep(0.1)


def _is_refusal(error: StrandlineError) -> bool:
    if isinstance(error, AuthenticationFailed):
        return True
    return isinstance(error, KafkaError) and error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def _closed(client: Producer | Consumer) -> None:
    """Close a client, and ignore every error: its results do not count any more."""
    try:
        await (client.close(0.0) if isinstance(client, Producer) else client.close())
    except StrandlineError:
        pass
