"""Which of the eight quotas is a client's: Kafka's order, and who shares it."""

from __future__ import annotations

from itertools import product

import pytest

from strandline.cluster.broker.quotas.limits import Limits, Share
from strandline.proto.quotas import QuotaEntity

KEY = "producer_byte_rate"
ORDER = [
    QuotaEntity("alice", "app"),
    QuotaEntity("alice", ""),
    QuotaEntity("alice"),
    QuotaEntity("", "app"),
    QuotaEntity("", ""),
    QuotaEntity(""),
    QuotaEntity(None, "app"),
    QuotaEntity(None, ""),
]
"""The comment of Kafka's ClientQuotaManager has it."""

SHARED_BY = [
    QuotaEntity("alice", "app"),
    QuotaEntity("alice", "app"),
    QuotaEntity("alice"),
    QuotaEntity("alice", "app"),
    QuotaEntity("alice", "app"),
    QuotaEntity("alice"),
    QuotaEntity(None, "app"),
    QuotaEntity(None, "app"),
]
"""Kafka's metric tags: a default gives each its own."""


def test_the_most_specific_counts_for_every_set_of_quotas() -> None:
    for chosen in product([False, True], repeat=8):
        quotas = {entity: {KEY: 100.0 + at} for at, entity in enumerate(ORDER) if chosen[at]}
        found = Limits(quotas, KEY).share("alice", "app")
        first = next((at for at in range(8) if chosen[at]), None)
        assert found == (None if first is None else Share(SHARED_BY[first], 100.0 + first))


def test_others_quotas_are_not_a_clients() -> None:
    others = [QuotaEntity("bob"), QuotaEntity("bob", "app"), QuotaEntity("alice", "other"), QuotaEntity(None, "other")]
    assert Limits({entity: {KEY: 1.0} for entity in others}, KEY).share("alice", "app") is None


def test_each_key_is_looked_up_for_itself() -> None:
    """A user's request_percentage does not hide the client.id's byte rate."""
    quotas = {QuotaEntity("alice", "app"): {"request_percentage": 1.0}, QuotaEntity(None, "app"): {KEY: 7.0}}
    assert Limits(quotas, KEY).share("alice", "app") == Share(QuotaEntity(None, "app"), 7.0)
    assert not Limits(quotas, "consumer_byte_rate")


@pytest.mark.parametrize("at", range(8))
def test_without_a_client_id_only_quotas_of_users_count(at: int) -> None:
    found = Limits({ORDER[at]: {KEY: 1.0}}, KEY).share("alice", "")
    assert found == (Share(QuotaEntity("alice"), 1.0) if ORDER[at].client_id is None else None)
