"""One TCP connection to a broker: pipelined requests, answers in order, versions settled once at the start.

Invariants:
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
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import strandline
from strandline.client import logs
from strandline.client.errors import BrokerUnreachable, ClientTimeout, Disconnected
from strandline.client.sasl import Login, authenticate
from strandline.client.versions import SUPPORTED, VersionRange, choose_version
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
from strandline.proto.tls import explain, is_tls_error

P = ParamSpec("P")
T = TypeVar("T")

_LONG_THROTTLE_MS = 1000
"""Longer waits for a quota are told, so that nobody looks for them elsewhere."""

_SCRATCH_BYTES = 64 << 10
_FRAME_START_BYTES = 1 << 20
"""A longer answer gets its memory as it arrives, by doubling, whatever length it announces."""


class _Pending(NamedTuple):
    correlation_id: int
    api: Api
    flexible: bool
    deadline: float
    timeout_ms: float
    answer: asyncio.Future[memoryview]


class Expected(NamedTuple):
    """Who is expected at an address that brokers advertise."""

    cluster_id: str
    node_id: int

    def __str__(self) -> str:
        return f"broker {self.node_id} of cluster {self.cluster_id}"


class Connection(asyncio.BufferedProtocol):
    """A connection that has settled its versions. Make one with `connect`."""

    def __init__(self, endpoint: Endpoint, client_id: str, on_lost: Callable[[Connection], None] | None) -> None:
        self.endpoint = endpoint
        self.versions: dict[int, VersionRange] = {}
        self.closed = False
        self.lost_by: StrandlineError | None = None
        """Why it is closed."""
        self.session_ms = 0
        """How long the login holds; 0: as long as the connection."""
        self.retired = False
        """It was closed because its session ends, and nothing is wrong."""
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
        """The broker has answered more than what it answers to anybody."""

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
        """How long nothing should be sent, for the broker reads nothing (KIP-219)."""
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
        """Return once what is out is answered, or the time is over. What nobody waits for any more is out too."""
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
            return

    # -- asyncio.BufferedProtocol -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The TCP connection is up."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go: straight into a long answer, else into the scratch buffer."""
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
    timeout_ms = min(request_timeout_ms, setup_timeout_ms)
    try:
        await connection.settle_versions(timeout_ms, expected)
        if login is not None:
            connection.session_ms = await authenticate(connection, login, timeout_ms, token)
    except (Disconnected, ClientTimeout) as error:
        connection.close()
        raise BrokerUnreachable(str(endpoint), str(error), advertised_by) from error
    except KafkaError as error:
        connection.close()
        if error.code is not ErrorCode.REBOOTSTRAP_REQUIRED or expected is None:
            raise
        raise BrokerUnreachable(str(endpoint), f"{expected} is not who answers there", advertised_by) from error
    except BaseException:
        connection.close()
        raise
    # schedule 82/dead-connection-is-kept
    if connection.closed:  # behind its last answer, before anybody had it: `on_lost` was called for nobody
        raise BrokerUnreachable(str(endpoint), str(connection.lost_by), advertised_by)
    return connection
