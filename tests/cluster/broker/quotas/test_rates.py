"""Rates against a brute force, as Kafka's Rate and SampledStat measure them; and the memory of them."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.cluster.broker.quotas import rate_quota
from strandline.cluster.broker.quotas.limits import Limits
from strandline.cluster.broker.quotas.rate_quota import THROTTLE_MS_MAX, RateQuota
from strandline.proto.quotas import QuotaEntity
from strandline.proto.rates import Rate, WindowShape

SHAPE = WindowShape(11, 1000.0)
KEY = "producer_byte_rate"


class KafkaRate:
    """Kafka's SampledStat and Rate, line by line, with its ring of samples."""

    def __init__(self, shape: WindowShape) -> None:
        self.shape = shape
        self.samples: list[list[float]] = []  # start, last event, value
        self.current = 0

    def record(self, value: float, now: float) -> None:
        if not self.samples:
            self.samples.append([now, now, 0.0])
        if now - self.samples[self.current][0] >= self.shape.size_ms:
            self.current = (self.current + 1) % (self.shape.windows + 1)
            if self.current >= len(self.samples):
                self.samples.append([now, now, 0.0])
            else:
                self.samples[self.current] = [now, now, 0.0]
        self.samples[self.current][1] = now
        self.samples[self.current][2] += value

    def _purge(self, now: float) -> None:
        for sample in self.samples:
            if now - sample[1] >= self.shape.windows * self.shape.size_ms:
                sample[:] = [now, now, 0.0]

    def span(self, now: float) -> float:
        self._purge(now)
        elapsed = now - min(sample[0] for sample in self.samples)
        whole, least = int(elapsed / self.shape.size_ms), self.shape.windows - 1
        if whole < least:
            elapsed += (least - whole) * self.shape.size_ms
        return max(elapsed, 1)

    def rate(self, now: float) -> float:
        self._purge(now)
        return sum(sample[2] for sample in self.samples) / (self.span(now) / 1000)


shapes = st.builds(WindowShape, st.integers(2, 12), st.sampled_from([100.0, 1000.0, 3000.0]))
events = st.lists(
    st.tuples(st.one_of(st.integers(0, 50), st.integers(0, 1500), st.integers(0, 40_000)), st.integers(0, 100_000)),
    min_size=1,
    max_size=60,
)


@given(shapes, events, st.integers(1, 10_000))
def test_the_rate_is_kafkas(shape: WindowShape, steps: list[tuple[int, int]], limit: int) -> None:
    ours, kafkas, now = Rate(shape), KafkaRate(shape), 0.0
    for gap, value in steps:
        now += gap
        ours.record(value, now)
        kafkas.record(value, now)
        assert ours.span_ms(now) == kafkas.span(now)
        assert ours.per_second(now) == pytest.approx(kafkas.rate(now))
        over = kafkas.rate(now) - limit
        expected = over / limit * kafkas.span(now) if over > 0 else 0.0
        assert ours.throttle_ms(limit, now) == pytest.approx(expected)


@given(events, st.integers(1, 10_000))
def test_whoever_waits_as_told_stays_within_its_share(steps: list[tuple[int, int]], limit: int) -> None:
    """The windows forget a burst while its client waits for it, so bursts may be twice the share, and no more."""
    rate, now, taken = Rate(SHAPE), 0.0, 0.0
    for gap, value in steps:
        now += gap
        rate.record(value, now)
        taken += value
        now += rate.throttle_ms(limit, now)
        assert taken <= limit * (2 * now + SHAPE.memory_ms) / 1000 + 1e-6


def quota(limit: float, user: str | None = "", client_id: str | None = None) -> RateQuota:
    made = RateQuota(SHAPE)
    made.limits = Limits({QuotaEntity(user, client_id): {KEY: limit}}, KEY)
    return made


def test_the_wait_is_what_brings_the_rate_back() -> None:
    """10 s of windows and a limit of 100: 1,500 are 5 s too many."""
    rates = quota(100)
    assert rates.record("alice", "", 1000, 0.0) == 0
    assert rates.record("alice", "", 500, 0.0) == 5000
    assert rates.record("bob", "", 1000, 0.0) == 0
    assert (rates.throttles, rates.throttled_ms) == (1, 5000)
    alice = next(one for one in rates.measured(0.0) if one.of.user == "alice")
    assert (alice.rate, alice.throttle_ms) == (150, 5000)


def test_nobody_waits_for_ever() -> None:
    assert quota(1).record("alice", "", 10**12, 0.0) == THROTTLE_MS_MAX


def test_what_is_taken_back_was_not_taken() -> None:
    rates = quota(100)
    assert rates.record_or_take_back("alice", "", 900, 0.0) == (0, True)
    assert rates.record_or_take_back("alice", "", 600, 0.0) == (5000, False)
    assert rates.record_or_take_back("alice", "", 100, 0.0) == (0, True)


def test_what_is_larger_than_a_quota_is_had_once_nothing_was_taken_lately() -> None:
    """Kafka answers nothing for ever: the batch alone is above the rate each time."""
    rates = quota(100)
    assert rates.record_or_take_back("alice", "", 5000, 0.0) == (40_000, True)
    assert rates.record_or_take_back("alice", "", 5000, 1000.0)[1] is False
    assert rates.record_or_take_back("alice", "", 5000, 40_000.0)[1] is True


def test_no_limit_no_memory() -> None:
    rates = quota(100, "alice")
    assert rates.record("bob", "app", 10**9, 0.0) == 0
    assert len(rates) == 0
    assert rates.most_at_once("bob", "app") == inf
    assert rates.most_at_once("alice", "app") == 1000


def test_a_client_with_another_name_each_time_takes_no_unbounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule A21: those of the last windows at most, and of them a bounded number."""
    monkeypatch.setattr(rate_quota, "SHARES_MAX", 50)
    rates = quota(100, None, "")
    for number in range(1000):
        rates.record("alice", f"id-{number}", 1, number * 1.0)
        assert len(rates) <= 50
    rates.record("alice", "id-0", 1, 999.0 + SHAPE.memory_ms)
    assert len(rates) == 1, "whoever is idle goes away"


def test_a_quota_that_changes_counts_at_once_for_what_was_taken_before() -> None:
    rates = quota(100)
    rates.record("alice", "", 1000, 0.0)
    rates.limits = Limits({QuotaEntity("alice"): {KEY: 50.0}}, KEY)
    assert rates.record("alice", "", 1, 0.0) == pytest.approx(10_020)
    rates.limits = Limits({QuotaEntity("alice"): {KEY: 5000.0}}, KEY)
    assert rates.record("alice", "", 1, 0.0) == 0
