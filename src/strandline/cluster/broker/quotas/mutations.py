"""controller_mutation_rate: what a request may change of the metadata (KIP-599, Kafka's ControllerMutationQuota)."""

from __future__ import annotations

from typing import Protocol

from strandline.cluster.broker.exchange import Charge
from strandline.cluster.broker.quotas.limits import Share
from strandline.cluster.broker.quotas.rate_quota import THROTTLE_MS_MAX
from strandline.cluster.broker.quotas.token_quota import TokenQuota
from strandline.proto.ports import Clock


class Request(Protocol):
    """The request that is charged (`strandline.cluster.broker.quotas.client_quotas`)."""

    def mute(self, throttle_ms: float) -> None:
        """Say in the answer how long to wait, and read nothing of the connection for so long."""


class MutationCharge(Charge):
    """The changes of one request of a client that has a quota.

    A strict one admits nothing while the client owes. Any other admits all, for a client that would not understand the
    error: then the client waits until it owes nothing. Either lets a change begin that is larger than what is left.
    """

    def __init__(self, quota: TokenQuota, share: Share, request: Request, clock: Clock, *, strict: bool) -> None:
        self._quota = quota
        self._share = share
        self._request = request
        self._clock = clock
        self._strict = strict
        self._refused = False

    def admits(self, partitions: int) -> bool:
        if partitions <= 0:
            return True
        now_ms = self._clock.monotonic_ms()
        if self._strict and self._quota.wait_ms(self._share, now_ms) > 0:
            self._refused = True
            return False
        self._quota.take(self._share, partitions, now_ms)
        return True

    def correct(self, partitions: int) -> None:
        if partitions:
            self._quota.take(self._share, partitions, self._clock.monotonic_ms())

    def settle(self) -> None:
        if self._strict and not self._refused:
            return
        now_ms = self._clock.monotonic_ms()
        throttle_ms = min(self._quota.wait_ms(self._share, now_ms), THROTTLE_MS_MAX)
        if throttle_ms > 0:
            self._quota.note_wait(self._share, throttle_ms, now_ms)
            self._request.mute(throttle_ms)
