"""The connections of one client: one per broker and purpose, opened when needed, with back-off where it fails.

Produce and Fetch go over a broker's *data* connection; everything else over its *control* connection, so that a look-up
never waits behind a fetch that a broker holds for half a second. A consumer that seeks while its fetch is held opens
one more, for the same reason.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import NamedTuple

from strandline.client import logs
from strandline.client.backoff import backoff_ms
from strandline.client.config import CommonConfig
from strandline.client.config_security import tls_settings
from strandline.client.connection import Connection, Expected, connect
from strandline.client.errors import AuthenticationFailed, BrokerUnreachable, ClosedError, TokenUnavailable
from strandline.client.sasl import login_of
from strandline.client.types import NodeInfo
from strandline.proto.errors import StrandlineError
from strandline.proto.ids import Endpoint
from strandline.proto.ports import Clock, Rng
from strandline.proto.tasks import shared
from strandline.proto.tls import client_context

DATA = "data"
CONTROL = "control"
SEEK = "seek"
GROUP = "group"
"""A coordinator answers a join only when everybody has joined: nothing else may wait behind it."""


RENEWED_AFTER = (0.85, 0.95)
"""A session is renewed after this part of its time, as Kafka's clients do: not all at once."""


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
        """Raises ConfigError: certificates or keys cannot be used, or it is not said who this client is."""
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
        """The last attempt to connect was refused: this user does not get in."""
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

        Raises:
            BrokerUnreachable: none of them answers; the message holds every address with its reason.
            AuthenticationFailed: one of them refuses this user.
            TokenUnavailable: there is nothing to log in with.
        """
        for node in nodes:
            connection = self.ready(node, CONTROL)
            if connection is not None:
                return connection
        advertised = {Endpoint(node.host, node.port): node for node in nodes}
        candidates = list(advertised)
        self._rng.shuffle(candidates)
        candidates += [endpoint for endpoint in self.bootstrap if endpoint not in advertised]
        reasons: list[str] = []
        for endpoint in candidates:
            try:
                return await self._get(endpoint, CONTROL, advertised.get(endpoint))
            except StrandlineError as error:
                if isinstance(error, ClosedError | AuthenticationFailed | TokenUnavailable):
                    raise
                reasons.append(error.reason if isinstance(error, BrokerUnreachable) else str(error))
        names = ", ".join(str(endpoint) for endpoint in candidates)
        if len(set(reasons)) == 1:
            why = reasons[0]
        else:
            why = "; ".join(f"{endpoint}: {reason}" for endpoint, reason in zip(candidates, reasons, strict=True))
        raise BrokerUnreachable(names, why, "Is the cluster running, and is this its client listener?")

    def backoff_ms(self, node: NodeInfo) -> float:
        """How long no new connection to a broker is tried; 0 when one may be."""
        backoff = self._backoffs.get(Endpoint(node.host, node.port))
        return 0.0 if backoff is None else max(0.0, backoff.until_ms - self._clock.monotonic_ms())

    async def close(self) -> None:
        """Close everything; requests that are out fail with Disconnected."""
        self._closed = True
        for connection in list(self._open.values()):
            connection.close()
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
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
            return connection
        task = self._opening.get(key)
        if task is None:
            backoff = self._backoffs.get(endpoint)
            if backoff is not None and self._clock.monotonic_ms() < backoff.until_ms:
                raise backoff.error.with_traceback(None)
            task = asyncio.get_running_loop().create_task(self._open_new(key, node))
            task.add_done_callback(_looked_at)
            self._opening[key] = task
        # Many callers wait for one attempt: one that is cancelled must not end it for the others.
        return await shared(task)

    async def _open_new(self, key: _Key, node: NodeInfo | None) -> Connection:
        config = self._config
        expected = None
        if node is not None and self.cluster_id is not None and config.metadata_cluster_check_enable:
            expected = Expected(self.cluster_id, node.node_id)  # rule B42/clients-take-whom-they-reach
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
                expected=expected,
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
    """The waiters get the error; when all of them were cancelled nobody takes it."""
    if not task.cancelled():
        task.exception()


def _advertised_by(node: NodeInfo) -> str:
    """What an error about its address says beside."""
    return f"That is the address broker {node.node_id} advertises (advertised.listeners): can this machine reach it?"
