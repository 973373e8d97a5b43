"""CreateTopics of topics that are restored from the object store: two settings of the creation ask for it (rule
B25)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from strandline.cluster.broker import restored_topics
from strandline.controller.api import CreatableTopic, CreatedTopic
from strandline.log.tier.restoring import ALLOW_LOSS, TOPIC_ID
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, StoreError
from strandline.proto.tier import AdoptedTier

ID = UUID(int=0x55, version=4)
TIERS = (AdoptedTier(0, ()),)


class Bench:
    """A store that has TIERS of everything, or fails; and a controller that takes everything."""

    def __init__(self) -> None:
        self.looked: list[tuple[str, UUID, bool]] = []
        self.asked: list[CreatableTopic] = []
        self.failure: Exception | None = None

    async def find(self, topic: str, topic_id: UUID, allow_loss: bool) -> tuple[AdoptedTier, ...]:
        self.looked.append((topic, topic_id, allow_loss))
        if self.failure is not None:
            raise self.failure
        return TIERS

    async def ask(self, topics: tuple[CreatableTopic, ...]) -> Sequence[CreatedTopic]:
        self.asked += topics
        return [CreatedTopic(topic.name, ErrorCode.NONE) for topic in topics]

    def create(self, *topics: CreatableTopic, dry_run: bool = False, store: bool = True) -> list[tuple[str, ErrorCode]]:
        find = self.find if store else None
        made = asyncio.run(restored_topics.create(topics, find, self.ask, dry_run=dry_run))
        assert all(bool(one.message) == (one.error is not ErrorCode.NONE) for one in made)
        return [(one.name, one.error) for one in made]


def wanted(name: str = "t", **configs: Any) -> CreatableTopic:
    return CreatableTopic(name, configs={**configs, "retention.ms": "-1"})


def test_what_the_store_has_goes_with_the_topic() -> None:
    """Its settings are those that stay; topics beside it are as they were asked for."""
    bench = Bench()
    plain, restored = wanted("plain"), wanted(**{TOPIC_ID: str(ID), ALLOW_LOSS: "true"})
    assert bench.create(plain, restored, wanted("last")) == [(name, ErrorCode.NONE) for name in ("plain", "t", "last")]
    assert bench.looked == [("t", ID, True)]
    assert bench.asked[0] == plain
    assert bench.asked[1] == CreatableTopic(
        "t", configs={"retention.ms": "-1"}, topic_id=ID, is_restored=True, tiers=TIERS
    )


def test_a_dry_run_does_not_look() -> None:
    bench = Bench()
    bench.create(wanted(**{TOPIC_ID: str(ID)}), dry_run=True)
    assert bench.looked == []
    assert (bench.asked[0].is_restored, bench.asked[0].tiers) == (True, ())


@pytest.mark.parametrize("failure", [StoreError("away"), KafkaError(ErrorCode.INVALID_REQUEST, "a gap")])
def test_each_topic_fails_alone(failure: Exception) -> None:
    bench = Bench()
    bench.failure = failure
    code = failure.code if isinstance(failure, KafkaError) else ErrorCode.KAFKA_STORAGE_ERROR
    made = bench.create(wanted(**{TOPIC_ID: str(ID)}), wanted("plain"))
    assert made == [("t", code), ("plain", ErrorCode.NONE)]
    assert [topic.name for topic in bench.asked] == ["plain"]


@pytest.mark.parametrize(
    "configs", [{TOPIC_ID: "orders"}, {TOPIC_ID: str(ID), ALLOW_LOSS: "yes"}, {ALLOW_LOSS: "true"}]
)
def test_settings_that_mean_nothing_are_refused(configs: dict[str, str]) -> None:
    bench = Bench()
    assert bench.create(wanted(**configs)) == [("t", ErrorCode.INVALID_CONFIG)]
    assert (bench.looked, bench.asked) == ([], [])


def test_a_broker_without_a_store_says_so() -> None:
    assert Bench().create(wanted(**{TOPIC_ID: str(ID)}), store=False) == [("t", ErrorCode.INVALID_CONFIG)]
