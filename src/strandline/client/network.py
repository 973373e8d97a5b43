"""The connections of one client: one per broker and purpose, opened when needed, with back-off where it fails.

`Network`: Produce and Fetch go over a broker's *data* connection; everything else over its *control* connection, so
that a look-up never waits behind a fetch that a broker holds for half a second. A consumer that seeks while its fetch
is held opens one more, for the same reason.

`Connection`: one TCP connection to a broker, its requests pipelined. `connect` opens it, settles the version of each
API, and logs in.

Invariants of a connection:
- Answers arrive in the order of their requests (Kafka's rule); any other correlation id breaks the connection.
- A request's future ends exactly once: with the body, or with the error that ended the connection.
- After an error nothing more is sent or read: the owner opens a new connection.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import strandline
from strandline.client import logs
from strandline.client.backoff import backoff_ms
from strandline.client.config import CommonConfig
from strandline.client.config_security import tls_settings
from strandline.client.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    ClientTimeout,
    ClosedError,
    Disconnected,
    TokenUnavailable,
)
from strandline.client.sasl import OAUTHBEARER, PLAIN, Login, login_of
from strandline.client.types import NodeInfo
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, ProtocolError, StrandlineError
from strandline.proto.ids import Endpoint
from strandline.proto.kafka import schema
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.fields import (
    INT16,
    INT32,
    LENGTH_BYTES,
    OWN_CLIENT,
    RESPONSE_BYTES_MAX,
    RESPONSE_HEADER_BYTES_MIN,
    Foreign,
    Piece,
    foreign_protocol,
    read_correlation_id,
    request_head,
    response_body,
)
from strandline.proto.ports import Clock, Rng
from strandline.proto.scram import NONCE_BITS, SCRAM_BY_TITLE, ScramClient, ScramError, nonce_of
from strandline.proto.tasks import shared
from strandline.proto.tls import client_context, explain, is_tls_error


class VersionRange(NamedTuple):
    """Versions from `low` to `high`, both included."""

    low: int
    high: int


SUPPORTED: dict[Api, VersionRange] = {
    Api.PRODUCE: VersionRange(3, 13),
    Api.FETCH: VersionRange(4, 17),
    Api.LIST_OFFSETS: VersionRange(1, 10),
    Api.METADATA: VersionRange(1, 13),
    Api.OFFSET_COMMIT: VersionRange(2, 10),
    Api.OFFSET_FETCH: VersionRange(2, 10),
    Api.FIND_COORDINATOR: VersionRange(0, 6),
    Api.JOIN_GROUP: VersionRange(2, 9),
    Api.HEARTBEAT: VersionRange(0, 4),
    Api.LEAVE_GROUP: VersionRange(0, 5),
    Api.SYNC_GROUP: VersionRange(0, 5),
    Api.DESCRIBE_GROUPS: VersionRange(0, 6),
    Api.LIST_GROUPS: VersionRange(0, 5),
    Api.SASL_HANDSHAKE: VersionRange(1, 1),
    Api.API_VERSIONS: VersionRange(0, 5),
    Api.CREATE_TOPICS: VersionRange(2, 7),
    Api.DELETE_TOPICS: VersionRange(1, 6),
    Api.DELETE_RECORDS: VersionRange(0, 2),
    Api.INIT_PRODUCER_ID: VersionRange(0, 5),
    Api.OFFSET_FOR_LEADER_EPOCH: VersionRange(2, 4),
    Api.ADD_PARTITIONS_TO_TXN: VersionRange(0, 3),
    Api.ADD_OFFSETS_TO_TXN: VersionRange(0, 4),
    Api.END_TXN: VersionRange(0, 5),
    Api.WRITE_TXN_MARKERS: VersionRange(1, 2),
    Api.TXN_OFFSET_COMMIT: VersionRange(3, 6),
    Api.DESCRIBE_ACLS: VersionRange(1, 3),
    Api.CREATE_ACLS: VersionRange(1, 3),
    Api.DELETE_ACLS: VersionRange(1, 3),
    Api.DESCRIBE_CONFIGS: VersionRange(1, 4),
    Api.ALTER_REPLICA_LOG_DIRS: VersionRange(1, 2),
    Api.DESCRIBE_LOG_DIRS: VersionRange(1, 4),
    Api.SASL_AUTHENTICATE: VersionRange(0, 2),
    Api.CREATE_PARTITIONS: VersionRange(0, 3),
    Api.DELETE_GROUPS: VersionRange(0, 2),
    Api.ELECT_LEADERS: VersionRange(1, 2),
    Api.INCREMENTAL_ALTER_CONFIGS: VersionRange(0, 1),
    Api.ALTER_PARTITION_REASSIGNMENTS: VersionRange(0, 1),
    Api.LIST_PARTITION_REASSIGNMENTS: VersionRange(0, 0),
    Api.OFFSET_DELETE: VersionRange(0, 0),
    Api.DESCRIBE_CLIENT_QUOTAS: VersionRange(0, 1),
    Api.ALTER_CLIENT_QUOTAS: VersionRange(0, 1),
    Api.DESCRIBE_USER_SCRAM_CREDENTIALS: VersionRange(0, 0),
    Api.ALTER_USER_SCRAM_CREDENTIALS: VersionRange(0, 0),
    Api.DESCRIBE_QUORUM: VersionRange(0, 2),
    Api.UPDATE_FEATURES: VersionRange(2, 2),
    Api.DESCRIBE_CLUSTER: VersionRange(0, 2),
    Api.DESCRIBE_PRODUCERS: VersionRange(0, 0),
    Api.UNREGISTER_BROKER: VersionRange(0, 0),
    Api.DESCRIBE_TRANSACTIONS: VersionRange(0, 0),
    Api.LIST_TRANSACTIONS: VersionRange(0, 2),
    Api.CONSUMER_GROUP_HEARTBEAT: VersionRange(0, 1),
    Api.CONSUMER_GROUP_DESCRIBE: VersionRange(0, 1),
    Api.DESCRIBE_TOPIC_PARTITIONS: VersionRange(0, 0),
    Api.ADD_RAFT_VOTER: VersionRange(0, 0),
    Api.REMOVE_RAFT_VOTER: VersionRange(0, 0),
}
"""Versions of each API that this client speaks."""


def choose_version(api: Api, offered: VersionRange | None, broker: str, at_most: int | None = None) -> int:
    """The highest version that both sides speak.

    Raises:
        KafkaError: UNSUPPORTED_VERSION, with both ranges, when there is none.
    """
    mine = SUPPORTED[api]
    top = mine.high if at_most is None else min(mine.high, at_most)
    if offered is None:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{broker} does not offer {api.name} at all")
    version = min(top, offered.high)
    if version < max(mine.low, offered.low):
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"{broker} speaks {api.name} {offered.low} to {offered.high}, this client {mine.low} to {top}",
        )
    return version


P = ParamSpec("P")
T = TypeVar("T")

_LONG_THROTTLE_MS = 1000
"""Milliseconds from which on a wait for a quota is logged at INFO; shorter ones are logged at DEBUG."""

_SCRATCH_BYTES = 64 << 10
_FRAME_START_BYTES = 1 << 20
"""First allocation for a long answer, doubled as its bytes arrive, whatever length it announces."""


class _Pending(NamedTuple):
    correlation_id: int
    api: Api
    flexible: bool
    deadline: float
    timeout_ms: float
    answer: asyncio.Future[memoryview]


class Expected(NamedTuple):
    """Identity of the broker that should answer at an advertised address."""

    cluster_id: str
    node_id: int

    def __str__(self) -> str:
        return f"broker {self.node_id} of cluster {self.cluster_id}"


class UnexpectedBroker(BrokerUnreachable):
    """An address is answered by another broker than the advertised one, or by one of another cluster."""


class Connection(asyncio.BufferedProtocol):
    """A connection that has settled its versions. Make one with `connect`."""

    def __init__(self, endpoint: Endpoint, client_id: str, on_lost: Callable[[Connection], None] | None) -> None:
        self.endpoint = endpoint
        self.versions: dict[int, VersionRange] = {}
        self.features: dict[str, int] = {}
        """Levels of the cluster's features, as they were finalized when this connection came up (KIP-584)."""
        self.closed = False
        self.lost_by: StrandlineError | None = None
        """Error that closed it; None: it is open."""
        self.session_ms = 0
        """Milliseconds that the login holds; 0: as long as the connection."""
        self.met: Expected | None = None
        """Identity that was expected when the versions were negotiated; None for a connection to a bootstrap
        address."""
        self.retired = False
        """Whether it was closed because its session ends, and nothing is wrong."""
        self._throttled_until = 0.0
        self.writable = True
        self.on_writable: Callable[[], None] | None = None
        self._client_id = client_id
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._next_correlation_id = 0
        self._pending: deque[_Pending] = deque()
        self._drained: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._scratch = bytearray(_SCRATCH_BYTES)
        self._have = 0
        self._frame: bytearray | None = None
        self._frame_bytes = 0
        self._filled = 0
        self._served = False
        """Whether the broker has answered more than ApiVersions, which it answers to any client."""

    # -- requests ---------------------------------------------------------------------------------------------------

    def version(self, api: Api, at_most: int | None = None) -> int:
        """The version of `api` on this connection.

        Raises:
            KafkaError: UNSUPPORTED_VERSION.
        """
        return choose_version(api, self.versions.get(api), str(self.endpoint), at_most)

    async def call(self, api: Api, values: Mapping[str, Any], timeout_ms: float, at_most: int | None = None) -> Any:
        """Send one of the small APIs' requests and decode its answer.

        Raises:
            Disconnected, ClientTimeout, KafkaError (UNSUPPORTED_VERSION), ProtocolError.
        """
        version = self.version(api, at_most)
        await self.wait_throttled()
        body = await self.send(api, version, [schema.request(api, version).encode(values)], timeout_ms)
        answer = self.read(schema.response(api, version).decode, body)
        self.throttle(getattr(answer, "throttle_time", 0))
        return answer

    @property
    def throttled_ms(self) -> float:
        """Milliseconds in which nothing should be sent, for the broker reads nothing (KIP-219)."""
        return max(0.0, self._throttled_until - self._loop.time()) * 1000

    def throttle(self, throttle_ms: int) -> None:
        """An answer said this throttle_time_ms. What is on its way waits at the broker, and gets time for that."""
        if throttle_ms <= 0:  # rule A21/our-client-sends-on
            return
        level = logging.INFO if throttle_ms >= _LONG_THROTTLE_MS else logging.DEBUG
        logs.network.log(level, "%s throttles this client for %d ms: it is above a quota", self.endpoint, throttle_ms)
        self._throttled_until = until = max(self._throttled_until, self._loop.time() + throttle_ms / 1000)
        self._pending = deque(
            item._replace(deadline=max(item.deadline, until + item.timeout_ms / 1000)) for item in self._pending
        )

    async def wait_throttled(self) -> None:
        """Return once something may be sent, or the connection is closed."""
        if self.throttled_ms > 0 and not self.closed:
            await asyncio.sleep(self.throttled_ms / 1000)
            await self.wait_throttled()

    def send(
        self,
        api: Api,
        version: int,
        pieces: Sequence[Piece],
        timeout_ms: float,
        answered: bool = True,
    ) -> asyncio.Future[memoryview]:
        """Write one request; the future gives the body of its answer (at once empty when `answered` is false).

        No answer within `timeout_ms` ends the connection, as nothing behind it could be answered either.
        """
        answer: asyncio.Future[memoryview] = self._loop.create_future()
        if self.closed or self._transport is None:
            answer.set_exception(Disconnected(f"the connection to {self.endpoint} is closed"))
            return answer
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        head = request_head(api, version, correlation_id, self._client_id, sum(map(len, pieces)))
        if answered:
            deadline = self._loop.time() + timeout_ms / 1000
            flexible = api.flexible_answer_header(version)
            self._pending.append(_Pending(correlation_id, api, flexible, deadline, timeout_ms, answer))
            if self._timer is None or deadline < self._timer.when():
                self._set_timer(deadline)
        else:
            answer.set_result(memoryview(b""))
        self._transport.write(b"".join((head, *pieces)))
        return answer

    def read(
        self, reader: Callable[Concatenate[memoryview, P], T], body: memoryview, *rest: P.args, **named: P.kwargs
    ) -> T:
        """What `reader` makes of the body of an answer.

        Raises:
            ProtocolError: the body is not what it says; the error names the broker that sent it.
        """
        try:
            return reader(body, *rest, **named)
        except ProtocolError as error:
            raise ProtocolError(f"{self.endpoint} sent what is no answer: {error}") from error

    def close(self) -> None:
        """Close now; what is out fails with Disconnected."""
        self._end(Disconnected(f"the connection to {self.endpoint} was closed here"))

    async def drain(self, timeout_ms: float) -> None:
        """Return once all requests are answered, including those whose callers were cancelled, or the time is over."""
        if self._pending:  # rule A19/request-without-a-caller-is-not-out
            self._drained = self._loop.create_future()
            await asyncio.wait([self._drained], timeout=timeout_ms / 1000)

    def end_session(self) -> None:
        """Close, once what is written has left: the login does not hold any longer. What is out fails."""
        self.retired = True
        self._end(Disconnected(f"the session at {self.endpoint} is over"), flush=True)

    @property
    def in_flight(self) -> int:
        """Requests without an answer."""
        return len(self._pending)

    async def settle_versions(self, timeout_ms: float, expected: Expected | None = None) -> None:
        """ApiVersions (KIP-35, KIP-511): a broker that does not know our version says in version 0 what it knows.

        Raises:
            KafkaError: REBOOTSTRAP_REQUIRED, it is not who is `expected` (KIP-1242); UNSUPPORTED_VERSION.
        """
        version = SUPPORTED[Api.API_VERSIONS].high
        while True:
            values = {
                "client_software_name": OWN_CLIENT,
                "client_software_version": strandline.__version__,
                "cluster_id": None if expected is None else expected.cluster_id,
                "node_id": -1 if expected is None else expected.node_id,
            }
            request = schema.request(Api.API_VERSIONS, version).encode(values)
            body = await self.send(Api.API_VERSIONS, version, [request], timeout_ms)
            if len(body) >= INT16.size and INT16.unpack_from(body)[0] == ErrorCode.UNSUPPORTED_VERSION:
                answer = self.read(schema.response(Api.API_VERSIONS, 0).decode, body)
                known = [key.max_version for key in answer.api_keys if key.api_key == Api.API_VERSIONS]
                lower = min(version - 1, known[0] if known else 0)
                if lower < 0:
                    raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{self.endpoint} refuses every ApiVersions")
                version = lower
                continue
            answer = self.read(schema.response(Api.API_VERSIONS, version).decode, body)
            if answer.error_code != ErrorCode.NONE:
                raise KafkaError(answer.error_code, f"{self.endpoint} answered ApiVersions so")
            self.versions = {key.api_key: VersionRange(key.min_version, key.max_version) for key in answer.api_keys}
            finalized = getattr(answer, "finalized_features", ())
            self.features = {feature.name: feature.max_version_level for feature in finalized}
            self.met = expected
            return

    # -- asyncio.BufferedProtocol -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The TCP connection is up."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        """Buffer for the next received bytes: that of a long answer itself, else the scratch buffer."""
        if self._frame is not None:
            return memoryview(self._frame)[self._filled :]
        return memoryview(self._scratch)[self._have :]

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have arrived: hand over every answer that is whole."""
        if self._frame is not None:
            self._filled += nbytes
            if self._filled == self._frame_bytes:
                frame, self._frame = self._frame, None
                self._deliver(memoryview(frame))
            elif self._filled == len(self._frame):
                room = min(self._frame_bytes, 2 * len(self._frame)) - len(self._frame)
                self._frame = self._frame + bytes(room)
            return
        scratch = self._scratch
        have = self._have + nbytes
        pos = 0
        while have - pos >= LENGTH_BYTES and not self.closed:
            size = INT32.unpack_from(scratch, pos)[0]
            if not RESPONSE_HEADER_BYTES_MIN <= size <= RESPONSE_BYTES_MAX:
                self._end(_not_kafka(self.endpoint, bytes(scratch[pos : pos + 5]), size))
                return
            start = pos + LENGTH_BYTES
            if have - start >= size:
                self._deliver(memoryview(bytes(scratch[start : start + size])))
                pos = start + size
            elif size + LENGTH_BYTES > _SCRATCH_BYTES:
                self._frame = bytearray(min(size, _FRAME_START_BYTES))
                self._frame_bytes = size
                self._filled = have - start
                self._frame[: self._filled] = scratch[start:have]
                pos = have
            else:
                break
        self._have = have - pos
        if pos and self._have:
            scratch[: self._have] = scratch[pos:have]

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer closed, or the network did."""
        reason = "the broker closed the connection" if exc is None else explain(exc) if is_tls_error(exc) else str(exc)
        if self.versions and not (self._served or is_tls_error(exc)):
            reason += "; a listener with SASL does so to a client without (security.protocol, sasl.mechanism)"
        self._end(Disconnected(f"lost the connection to {self.endpoint}: {reason}"))

    def pause_writing(self) -> None:
        """The transport holds more than it likes: the peer reads slowly."""
        self.writable = False

    def resume_writing(self) -> None:
        """The transport takes more again."""
        self.writable = True
        if self.on_writable is not None:
            notify, self.on_writable = self.on_writable, None
            notify()

    # -- inside -----------------------------------------------------------------------------------------------------

    def _deliver(self, frame: memoryview) -> None:
        correlation_id = read_correlation_id(frame)
        if not self._pending or self._pending[0].correlation_id != correlation_id:
            self._end(ProtocolError(f"{self.endpoint} answered request {correlation_id}, which is not the next one"))
            return
        pending = self._pending.popleft()
        self._tell_drained()
        self._served = self._served or pending.api is not Api.API_VERSIONS
        try:
            body = response_body(frame, pending.flexible)
        except ProtocolError as error:
            self._fail(pending, ProtocolError(f"{self.endpoint} sent {error}"))
            return
        if not pending.answer.done():
            pending.answer.set_result(body)

    def _check_deadlines(self) -> None:
        self._timer = None
        if not self._pending:
            return
        now = self._loop.time()
        late = next((item for item in self._pending if item.deadline <= now), None)
        if late is None:
            self._set_timer(min(item.deadline for item in self._pending))
            return
        self._end(ClientTimeout(f"{self.endpoint} did not answer {late.api.name} within {late.timeout_ms:g} ms"))

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._check_deadlines)

    def _end(self, error: StrandlineError, *, flush: bool = False) -> None:
        if self.closed:
            return
        self.closed = True
        self.lost_by = error
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.close() if flush else self._transport.abort()
        pending, self._pending = self._pending, deque()
        self._tell_drained()
        for item in pending:
            self._fail(item, error)
        if self._on_lost is not None:
            self._on_lost(self)

    def _tell_drained(self) -> None:
        if self._drained is not None and not self._pending and not self._drained.done():
            self._drained.set_result(None)

    @staticmethod
    def _fail(pending: _Pending, error: StrandlineError) -> None:
        if not pending.answer.done():
            pending.answer.set_exception(error)
            # The sender of the request may be gone by now; then nobody takes the error.
            pending.answer.exception()


def _reason(error: OSError) -> str:
    """`Connection refused` and the like; asyncio's own text names the address once more."""
    if isinstance(error, socket.gaierror) or not error.errno:
        return error.strerror or str(error)
    return os.strerror(error.errno)


def _tls_reason(error: OSError) -> str:
    """As `_reason`, and what ended a handshake: a port without TLS closes the connection, or answers anything."""
    if is_tls_error(error):
        return explain(error)
    if isinstance(error, ConnectionResetError | ConnectionAbortedError):
        return "the connection was closed during the TLS handshake: is that the port of a listener with TLS (SSL)?"
    return _reason(error)


def _not_kafka(endpoint: Endpoint, start: bytes, size: int) -> ProtocolError:
    spoken = foreign_protocol(start)
    if spoken is Foreign.TLS:
        advice = "security.protocol=SSL (SASL_SSL with a login) connects so, ssl.truststore.location names the CA"
        return ProtocolError(f"{endpoint} speaks TLS; this client connects in plaintext: {advice}")
    if spoken is Foreign.HTTP_RESPONSE:
        return ProtocolError(f"{endpoint} speaks HTTP, not Kafka's protocol: use the client listener's port")
    return ProtocolError(f"{endpoint} announced a response of {size} bytes: it does not speak Kafka's protocol")


async def authenticate(connection: Connection, login: Login, timeout_ms: float, token: str = "") -> int:
    """Prove to the broker who this client is, and with SCRAM that the broker knows it.

    Args:
        token: of OAUTHBEARER.

    Returns:
        Milliseconds that the login holds (KIP-368); 0: as long as the connection.

    Raises:
        AuthenticationFailed: the broker refuses, or is none that knows this user. Asking again does not help.
        Disconnected, ClientTimeout, ProtocolError, KafkaError (UNSUPPORTED_VERSION).
    """
    answer = await connection.call(Api.SASL_HANDSHAKE, {"mechanism": login.mechanism}, timeout_ms)
    if answer.error_code is not ErrorCode.NONE:
        raise _handshake_refused(connection, login, answer.error_code, tuple(answer.mechanisms))
    if login.mechanism == OAUTHBEARER:
        return await _show_token(connection, login, token, timeout_ms)
    if login.mechanism == PLAIN:
        message = f"\0{login.user}\0{login.password}".encode()
        return (await _sasl_step(connection, login, message, timeout_ms)).lifetime_ms
    nonce = nonce_of(login.rng.getrandbits(NONCE_BITS))
    scram = ScramClient(SCRAM_BY_TITLE[login.mechanism], login.user, login.salted, nonce)
    try:
        challenge = await _sasl_step(connection, login, scram.first(), timeout_ms)
        last = await _sasl_step(connection, login, scram.final(challenge.token), timeout_ms)
        scram.verify(last.token)
        return last.lifetime_ms
    except ScramError as error:
        connection.close()
        why = f"{connection.endpoint} is not to be trusted: {error}"
        raise AuthenticationFailed(ErrorCode.SASL_AUTHENTICATION_FAILED, why) from None


async def _show_token(connection: Connection, login: Login, token: str, timeout_ms: float) -> int:
    """RFC 7628. A broker of Kafka refuses a token by an answer that looks like success and holds the reason."""
    try:
        answer = await _sasl_step(connection, login, f"n,,\x01auth=Bearer {token}\x01\x01".encode(), timeout_ms)
        if answer.token:
            await _sasl_step(connection, login, b"\x01", timeout_ms)
            words = f"{connection.endpoint} refuses {login.who} by {login.mechanism}"
            raise AuthenticationFailed(ErrorCode.SASL_AUTHENTICATION_FAILED, words)
    except AuthenticationFailed:
        assert login.tokens is not None
        login.tokens.refused(token)
        raise
    return answer.lifetime_ms


class _SaslAnswer(NamedTuple):
    token: bytes
    lifetime_ms: int


async def _sasl_step(connection: Connection, login: Login, token: bytes, timeout_ms: float) -> _SaslAnswer:
    answer: Any = await connection.call(Api.SASL_AUTHENTICATE, {"auth_bytes": token}, timeout_ms)
    if answer.error_code is not ErrorCode.NONE:
        words = f"{connection.endpoint} refuses {login.who} by {login.mechanism}"
        raise AuthenticationFailed(answer.error_code, f"{words}: {answer.error_message or 'without a reason'}")
    return _SaslAnswer(bytes(answer.auth_bytes), getattr(answer, "session_lifetime", 0))


def _handshake_refused(
    connection: Connection, login: Login, code: ErrorCode, mechanisms: tuple[str, ...]
) -> AuthenticationFailed:
    where = connection.endpoint
    if code is ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        words = f"{where} does not serve sasl.mechanism={login.mechanism}, only {', '.join(mechanisms) or 'others'}"
    elif code is ErrorCode.ILLEGAL_SASL_STATE:
        words = f"{where} is a listener without SASL: security.protocol is PLAINTEXT there, or SSL where it speaks TLS"
    else:
        words = f"{where} refuses SaslHandshake"
    return AuthenticationFailed(code, words)


async def connect(
    endpoint: Endpoint,
    client_id: str,
    *,
    setup_timeout_ms: float,
    request_timeout_ms: float,
    advertised_by: str | None = None,
    tls: ssl.SSLContext | None = None,
    login: Login | None = None,
    on_lost: Callable[[Connection], None] | None = None,
    expected: Expected | None = None,
) -> Connection:
    """Open a connection, settle its versions, log in. `advertised_by` tells in an error where the address came from.

    Raises:
        BrokerUnreachable: nobody answers there, or somebody else than is `expected`, or the connection breaks while
            versions are settled.
        AuthenticationFailed: the broker refuses this user, or the token endpoint this client.
        TokenUnavailable: there is no token to log in with.
        ProtocolError: something else than a Kafka broker listens there.
        KafkaError: UNSUPPORTED_VERSION.
    """
    loop = asyncio.get_running_loop()
    # First of all: a broker waits only so long for a login.
    token = "" if login is None or login.tokens is None else await login.tokens.current()
    try:
        async with asyncio.timeout(setup_timeout_ms / 1000):
            _, connection = await loop.create_connection(
                lambda: Connection(endpoint, client_id, on_lost), endpoint.host, endpoint.port, ssl=tls
            )
    except TimeoutError:
        raise BrokerUnreachable(str(endpoint), f"no connection within {setup_timeout_ms:g} ms", advertised_by) from None
    except OSError as error:
        reason = _reason(error) if tls is None else _tls_reason(error)
        raise BrokerUnreachable(str(endpoint), reason, advertised_by) from error
    except (ValueError, OverflowError) as error:  # an address that can be none
        raise BrokerUnreachable(str(endpoint), str(error), advertised_by) from error
    timeout_ms = min(request_timeout_ms, setup_timeout_ms)
    try:
        await _settle(connection, timeout_ms, expected, advertised_by)
        if login is not None:
            connection.session_ms = await authenticate(connection, login, timeout_ms, token)
    except (Disconnected, ClientTimeout) as error:
        connection.close()
        raise BrokerUnreachable(str(endpoint), str(error), advertised_by) from error
    except BaseException:
        connection.close()
        raise
    # schedule 82/dead-connection-is-kept
    if connection.closed:  # behind its last answer, before anybody had it: `on_lost` was called for nobody
        raise BrokerUnreachable(str(endpoint), str(connection.lost_by), advertised_by)
    return connection


async def _settle(
    connection: Connection, timeout_ms: float, expected: Expected | None, advertised_by: str | None
) -> None:
    """Settle the versions, and that the broker is who is `expected`.

    Raises:
        UnexpectedBroker: another one answers.
        BrokerUnreachable: the connection breaks.
        ProtocolError, KafkaError: as `connect`.
    """
    try:
        await connection.settle_versions(timeout_ms, expected)
    except (Disconnected, ClientTimeout) as error:
        raise BrokerUnreachable(str(connection.endpoint), str(error), advertised_by) from error
    except KafkaError as error:
        if error.code is not ErrorCode.REBOOTSTRAP_REQUIRED or expected is None:
            raise
        reason = f"{expected} is not who answers there"
        raise UnexpectedBroker(str(connection.endpoint), reason, advertised_by) from error


DATA = "data"
CONTROL = "control"
SEEK = "seek"
GROUP = "group"
"""Purpose of a connection to a group's coordinator, which answers a join only when every member has joined: nothing
else may wait behind it."""

RENEWED_AFTER = (0.85, 0.95)
"""A session is renewed after a part of its time that is drawn from this range, so that not all renew at once."""


class _Key(NamedTuple):
    endpoint: Endpoint
    purpose: str


@dataclass(slots=True)
class _Backoff:
    failures: int
    until_ms: float
    error: StrandlineError


class Network:
    """Opens, shares and forgets connections. Runs on one event loop."""

    def __init__(self, bootstrap: tuple[Endpoint, ...], config: CommonConfig, clock: Clock, rng: Rng) -> None:
        """Create the connections' shared state. Raises ConfigError if certificates or keys cannot be used, or the
        client's own identity is not configured."""
        self.bootstrap = bootstrap
        self._config = config
        self._clock = clock
        self._rng = rng
        self._open: dict[_Key, Connection] = {}
        self._opening: dict[_Key, asyncio.Task[Connection]] = {}
        self._backoffs: dict[Endpoint, _Backoff] = {}
        self._renewals: dict[Connection, asyncio.TimerHandle] = {}
        self._closed = False
        self.denied: AuthenticationFailed | None = None
        """Error of the last attempt to connect, where the broker refused this user; else None."""
        self.cluster_id: str | None = None
        """The cluster whose brokers are expected at the addresses that they advertise; None: not known yet."""
        self._login = login_of(config, clock, rng)
        tls = tls_settings(config)
        tokens_over_tls = self._login is not None and self._login.tokens is not None and self._login.tokens.over_tls
        if tls is None and not tokens_over_tls and (config.ssl_truststore_location or config.ssl_keystore_location):
            logs.network.warning("ssl.* settings have no effect with security.protocol=%s", config.security_protocol)
        check_host = config.ssl_endpoint_identification_algorithm == "https"
        self._tls = None if tls is None else client_context(tls, check_host=check_host)

    def ready(self, node: NodeInfo, purpose: str) -> Connection | None:
        """The open connection to a broker, if there is one."""
        return self._open.get(_Key(Endpoint(node.host, node.port), purpose))

    async def to_node(self, node: NodeInfo, purpose: str) -> Connection:
        """A connection to a broker, opened if need be.

        Raises:
            BrokerUnreachable: with the advertised address; also while its back-off lasts.
        """
        return await self._get(Endpoint(node.host, node.port), purpose, node)

    async def to_any(self, nodes: list[NodeInfo]) -> Connection:
        """A control connection to whichever broker answers: an open one first, then `nodes`, then the bootstrap list.
        That may have the same addresses: where others answer than `nodes`, they are asked who the brokers are now.

        Raises:
            BrokerUnreachable: none of them answers; the message holds every address with its reason.
            AuthenticationFailed: one of them refuses this user.
            TokenUnavailable: there is nothing to log in with.
        """
        for known in nodes:
            connection = self.ready(known, CONTROL)
            if connection is not None:
                return connection
        advertised = {Endpoint(node.host, node.port): node for node in nodes}
        shuffled = list(advertised)
        self._rng.shuffle(shuffled)
        candidates: deque[tuple[Endpoint, NodeInfo | None]] = deque((each, advertised[each]) for each in shuffled)
        candidates.extend((endpoint, None) for endpoint in self.bootstrap if endpoint not in advertised)
        reasons: dict[Endpoint, str] = {}
        while candidates:
            endpoint, node = candidates.popleft()
            try:
                return await self._get(endpoint, CONTROL, node)
            except StrandlineError as error:
                if isinstance(error, ClosedError | AuthenticationFailed | TokenUnavailable):
                    raise
                if isinstance(error, UnexpectedBroker) and node is not None and endpoint in self.bootstrap:
                    candidates.append(
                        (endpoint, None)
                    )  # rule B42/an-address-that-is-advertised-is-no-bootstrap-address
                reasons[endpoint] = error.reason if isinstance(error, BrokerUnreachable) else str(error)
        names = ", ".join(map(str, reasons))
        if len(set(reasons.values())) == 1:
            why = next(iter(reasons.values()))
        else:
            why = "; ".join(f"{endpoint}: {reason}" for endpoint, reason in reasons.items())
        raise BrokerUnreachable(names, why, "Is the cluster running, and is this its client listener?")

    def backoff_ms(self, node: NodeInfo) -> float:
        """Milliseconds until a new connection to a broker may be tried; 0: now."""
        backoff = self._backoffs.get(Endpoint(node.host, node.port))
        return 0.0 if backoff is None else max(0.0, backoff.until_ms - self._clock.monotonic_ms())

    def found(self, cluster_id: str | None, told_by: Connection) -> None:
        """Expect the brokers of this cluster from now on; connections to those of another are closed."""
        if self.cluster_id is not None and cluster_id is not None and cluster_id != self.cluster_id:
            logs.network.warning(
                "%s belongs to cluster %s, and this client knew brokers of cluster %s: it goes on there",
                told_by.endpoint, cluster_id, self.cluster_id,
            )  # fmt: skip
            for connection in list(self._open.values()):
                if connection is not told_by:  # rule B42/what-leads-to-another-cluster-stays-open
                    connection.close()
        self.cluster_id = cluster_id

    def sent_away(self, connection: Connection) -> None:
        """Close a connection whose broker wants the bootstrap addresses to be asked; its own is the last of them."""
        connection.close()
        if connection.endpoint in self.bootstrap:
            others = (endpoint for endpoint in self.bootstrap if endpoint != connection.endpoint)
            self.bootstrap = (*others, connection.endpoint)

    def drop(self) -> None:
        """Close every connection, and open none from now on; requests that are out fail with Disconnected."""
        self._closed = True
        for connection in list(self._open.values()):
            connection.close()
        for task in self._opening.values():
            task.cancel()

    async def close(self) -> None:
        """Drop everything, and return when that has ended."""
        self.drop()
        opening = list(self._opening.values())
        if opening:
            await asyncio.wait(opening)
        if self._login is not None and self._login.tokens is not None:
            await self._login.tokens.close()

    async def _get(self, endpoint: Endpoint, purpose: str, node: NodeInfo | None) -> Connection:
        """`node`: the broker that advertises the endpoint; None: it is a bootstrap address."""
        if self._closed:
            raise ClosedError("the client is closed")
        key = _Key(endpoint, purpose)
        connection = self._open.get(key)
        if connection is not None:
            await self._meet(connection, node)
            return connection
        task = self._opening.get(key)
        if task is None:
            backoff = self._backoffs.get(endpoint)
            if backoff is not None and node is None and isinstance(backoff.error, UnexpectedBroker):
                backoff = None  # whoever answers there will do
            if backoff is not None and self._clock.monotonic_ms() < backoff.until_ms:
                raise backoff.error.with_traceback(None)
            task = asyncio.get_running_loop().create_task(self._open_new(key, node))
            task.add_done_callback(_looked_at)
            self._opening[key] = task
        # Many callers wait for one attempt: one that is cancelled must not end it for the others.
        return await shared(task)

    def _expected(self, node: NodeInfo | None) -> Expected | None:
        """Identity of the broker that should answer at this address; None if any may."""
        if node is None or self.cluster_id is None or not self._config.metadata_cluster_check_enable:
            return None
        return Expected(self.cluster_id, node.node_id)  # rule B42/clients-take-whom-they-reach

    async def _meet(self, connection: Connection, node: NodeInfo | None) -> None:
        """Ask who answers, where a connection that was made by a bootstrap address is to be one to this broker.

        Raises:
            BrokerUnreachable: another one, and the connection is closed; or it breaks.
        """
        expected = self._expected(node)
        if node is None or expected is None or connection.met == expected:
            return
        try:
            # rule B42/a-bootstrap-connection-is-whoever-is-wanted
            await _settle(connection, self._config.request_timeout_ms, expected, _advertised_by(node))
        except UnexpectedBroker:
            connection.close()
            raise

    async def _open_new(self, key: _Key, node: NodeInfo | None) -> Connection:
        config = self._config
        try:
            connection = await connect(
                key.endpoint,
                config.client_id,
                setup_timeout_ms=config.socket_connection_setup_timeout_ms,
                request_timeout_ms=config.request_timeout_ms,
                advertised_by=None if node is None else _advertised_by(node),
                tls=self._tls,
                login=self._login,
                on_lost=lambda lost: self._forget(key, lost),
                expected=self._expected(node),
            )
        except StrandlineError as error:
            if isinstance(error, AuthenticationFailed):
                self.denied = error
            self._back_off(key.endpoint, error)
            raise
        else:
            self.denied = None
            failed = self._backoffs.pop(key.endpoint, None)
            if failed is None:
                logs.network.debug("connected to %s", key.endpoint)
            else:
                attempts = f"{failed.failures} failed attempt{'s' if failed.failures > 1 else ''}"
                logs.network.info("connected to %s again, after %s", key.endpoint, attempts)
            self._open[key] = connection
            if connection.session_ms:  # rule A19/sessions-are-not-renewed
                wait_ms = connection.session_ms * self._rng.uniform(*RENEWED_AFTER)
                self._renewals[connection] = asyncio.get_running_loop().call_later(
                    wait_ms / 1000, self._renew, key, connection, node
                )
            return connection
        finally:
            self._opening.pop(key, None)

    def _renew(self, key: _Key, connection: Connection, node: NodeInfo | None) -> None:
        """The session ends soon: go on with a new connection, once everything on this one is answered, so that
        requests stay in order. Where nothing is under way the next request opens it."""
        if self._closed or self._open.get(key) is not connection:
            return
        del self._open[key]
        if not connection.in_flight:  # rule A19/next-session-overtakes
            connection.end_session()
            return
        task = asyncio.get_running_loop().create_task(self._open_next(key, connection, node))
        task.add_done_callback(_looked_at)
        self._opening[key] = task

    async def _open_next(self, key: _Key, last: Connection, node: NodeInfo | None) -> Connection:
        try:
            await last.drain(last.session_ms * (1 - RENEWED_AFTER[1]) / 2)
        except asyncio.CancelledError:
            self._opening.pop(key, None)
            raise
        finally:
            last.end_session()
        return await self._open_new(key, node)

    def _back_off(self, endpoint: Endpoint, error: StrandlineError) -> None:
        previous = self._backoffs.get(endpoint)
        failures = 1 if previous is None else previous.failures + 1
        wait = backoff_ms(failures, self._config.reconnect_backoff_ms, self._config.reconnect_backoff_max_ms, self._rng)
        self._backoffs[endpoint] = _Backoff(failures, self._clock.monotonic_ms() + wait, error)
        reason = error.reason if isinstance(error, BrokerUnreachable) else error
        level = logging.WARNING if failures == 1 else logging.DEBUG  # once for each time that it is gone
        logs.network.log(level, "cannot connect to %s: %s; tried again, first after %.0f ms", endpoint, reason, wait)

    def _forget(self, key: _Key, connection: Connection) -> None:
        if self._open.get(key) is connection:
            del self._open[key]
        renewal = self._renewals.pop(connection, None)
        if renewal is not None:
            renewal.cancel()
        if not (self._closed or connection.retired):
            logs.network.info("the connection to %s was lost: %s", key.endpoint, connection.lost_by)


def _looked_at(task: asyncio.Task[Connection]) -> None:
    """Mark a task's error as seen: if all waiters were cancelled, nobody else would take it."""
    if not task.cancelled():
        task.exception()


def _advertised_by(node: NodeInfo) -> str:
    """Advice for an error about the address of a broker."""
    return f"That is the address broker {node.node_id} advertises (advertised.listeners): can this machine reach it?"
