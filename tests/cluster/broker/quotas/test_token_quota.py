"""Tokens against Kafka's TokenBucket; who owes is remembered; what a request is charged (KIP-599)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.cluster.broker.quotas import rate_quota
from strandline.cluster.broker.quotas.client_quotas import MutationCharge
from strandline.cluster.broker.quotas.limits import AddressLimits, Share
from strandline.cluster.broker.quotas.rate_quota import THROTTLE_MS_MAX, TokenQuota
from strandline.proto.quotas import QuotaEntity
from strandline.proto.rates import TokenBucket, WindowShape

SHAPE = WindowShape(11, 1000.0)
ALICE = QuotaEntity("alice")


class KafkaBucket:
    """Kafka's TokenBucket, line by line; its clock is the time of day, so its first refill fills it."""

    def __init__(self, shape: WindowShape) -> None:
        self.shape = shape
        self.tokens = 0.0
        self.last_ms = -1e15

    def _refill(self, quota: float, now_ms: float) -> float:
        burst = self.shape.windows * (self.shape.size_ms / 1000) * quota
        self.tokens = min(burst, self.tokens + quota * (now_ms - self.last_ms) / 1000)
        self.last_ms = now_ms
        return burst

    def record(self, value: float, quota: float, now_ms: float) -> None:
        burst = self._refill(quota, now_ms)
        self.tokens = min(burst, self.tokens - value)

    def measure(self, quota: float, now_ms: float) -> float:
        self._refill(quota, now_ms)
        return self.tokens


shapes = st.builds(WindowShape, st.integers(1, 12), st.sampled_from([100.0, 1000.0, 3000.0]))
steps = st.lists(
    st.tuples(st.integers(0, 40_000), st.integers(-50, 1000), st.sampled_from([0.5, 5.0, 100.0])),
    min_size=1,
    max_size=40,
)


@given(shapes, steps)
def test_the_tokens_are_kafkas(shape: WindowShape, steps: list[tuple[int, int, float]]) -> None:
    """With a quota that changes between them, too."""
    ours, kafkas, now = TokenBucket(shape), KafkaBucket(shape), 0.0
    for gap, value, quota in steps:
        now += gap
        assert ours.tokens(quota, now) == pytest.approx(kafkas.measure(quota, now), abs=1e-6)
        ours.take(value, quota, now)
        kafkas.record(value, quota, now)
        assert ours.tokens(quota, now) == pytest.approx(kafkas.tokens, abs=1e-6)


@given(st.lists(st.tuples(st.integers(0, 20_000), st.integers(1, 500)), min_size=1, max_size=40), st.integers(1, 100))
def test_who_waits_as_told_takes_the_burst_and_the_rate(steps: list[tuple[int, int]], limit: int) -> None:
    """And what it took last, which may be larger than all that is left."""
    quota, share, now, before = TokenQuota(SHAPE), Share(ALICE, limit), 0.0, 0.0
    for gap, value in steps:
        now += gap + quota.wait_ms(share, now + gap)
        assert before <= limit * (now + SHAPE.memory_ms) / 1000 + 1e-6
        quota.take(share, value, now)
        before += value


def test_who_owes_is_remembered_until_it_owes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule A21: idle or not. Rates are forgotten after their windows; a debt may last longer."""
    quota, share = TokenQuota(SHAPE), Share(ALICE, 1)
    quota.take(share, 111, 0.0)
    later = Share(QuotaEntity("bob"), 1)
    quota.take(later, 1, 50_000.0)
    assert quota.wait_ms(share, 50_000.0) == pytest.approx(50_000)
    assert len(quota) == 2
    quota.take(later, 1, 120_000.0)
    assert len(quota) == 1
    assert quota.wait_ms(share, 120_000.0) == 0
    monkeypatch.setattr(rate_quota, "SHARES_MAX", 50)
    for number in range(1000):
        quota.take(Share(QuotaEntity(None, f"id-{number}"), 1), 20, 120_000.0)
        assert len(quota) <= 50


def test_what_is_given_back_was_not_taken() -> None:
    quota, share = TokenQuota(SHAPE), Share(ALICE, 1)
    quota.take(share, 31, 0.0)
    assert quota.wait_ms(share, 0.0) == 20_000
    quota.take(share, -25, 1000.0)
    assert quota.wait_ms(share, 1000.0) == 0
    quota.take(share, -100, 1000.0)
    quota.take(share, 12, 1000.0)
    assert quota.wait_ms(share, 1000.0) == 1000, "and no more than the burst can be had at once"
    [one] = quota.measured(1000.0)
    assert one.rate >= 0


def test_an_address_has_its_own_quota_or_the_default() -> None:
    key = "connection_creation_rate"
    limits = AddressLimits({QuotaEntity(ip="10.0.0.1"): {key: 5.0}, QuotaEntity(ip=""): {key: 7.0}, ALICE: {"x": 1.0}})
    assert limits.share("10.0.0.1") == Share(QuotaEntity(ip="10.0.0.1"), 5.0)
    assert limits.share("10.0.0.2") == Share(QuotaEntity(ip="10.0.0.2"), 7.0)
    assert limits.share("") is None, "a transport without addresses"
    assert AddressLimits({QuotaEntity(ip="10.0.0.1"): {key: 5.0}}).share("10.0.0.2") is None
    assert not AddressLimits({ALICE: {"request_percentage": 1.0}})


class Request:
    """A request, and the clock."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.waits: list[float] = []

    def monotonic_ms(self) -> float:
        return self.now_ms

    def mute(self, throttle_ms: float) -> None:
        self.waits.append(throttle_ms)


def charge(quota: TokenQuota, request: Request, *, strict: bool, limit: float = 1.0) -> MutationCharge:
    return MutationCharge(quota, Share(ALICE, limit), request, request, strict=strict)  # type: ignore[arg-type]


def test_a_strict_charge_admits_nothing_while_the_client_owes() -> None:
    """What is larger than what is left is had all the same; nobody waits for what it was given."""
    quota, request = TokenQuota(SHAPE), Request()
    with charge(quota, request, strict=True) as first:
        assert first.admits(5)
        assert first.admits(8)
    assert request.waits == []
    with charge(quota, request, strict=True) as second:
        assert not second.admits(1)
        assert second.admits(0), "it will fail, and shall hear why"
    assert request.waits == [2000]
    request.now_ms = 2000
    with charge(quota, request, strict=True) as third:
        assert third.admits(1)
    assert (request.waits, quota.throttles, quota.throttled_ms) == ([2000], 1, 2000)


def test_a_permissive_charge_admits_all_and_its_client_waits_for_what_was_done() -> None:
    quota, request = TokenQuota(SHAPE), Request()
    with charge(quota, request, strict=False) as first:
        assert [first.admits(10) for _ in range(3)] == [True, True, True]
        first.correct(-10)
    assert request.waits == [9000]
    with charge(quota, request, strict=False) as second:
        assert second.admits(10**9)
        second.correct(-(10**9))
    with charge(quota, request, strict=False) as third:
        assert third.admits(10**9)
    assert request.waits == [9000, 9000, THROTTLE_MS_MAX]


def test_of_a_request_that_ends_early_nobody_waits() -> None:
    """Its connection is gone; what it was charged stays: it may have been done."""
    quota, request = TokenQuota(SHAPE), Request()

    def leave() -> None:
        with charge(quota, request, strict=False) as one:
            one.admits(31)
            raise KeyError

    with pytest.raises(KeyError):
        leave()
    assert request.waits == []
    assert quota.wait_ms(Share(ALICE, 1.0), 0.0) == 20_000
