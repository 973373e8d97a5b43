"""CreateTopics for topics that are restored: their records are already in the object store (rule B25).

Kafka's protocol has no API for this. Two settings in a CreateTopics request ask for it, and are not stored with the
topic: `remote.storage.restore.topic.id` and `remote.storage.restore.allow.loss`. `strandline tier restore` sends them
after it has checked what is in the store; the broker checks again and does not rely on the client.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from strandline.controller.api import CreatableTopic, CreatedTopic
from strandline.log.tier.restoring import ALLOW_LOSS, TOPIC_ID
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, StoreError
from strandline.proto.ids import TopicId
from strandline.proto.tier import AdoptedTier

FindTiers = Callable[[str, TopicId, bool], Awaitable[tuple[AdoptedTier, ...]]]
"""(topic name, topic id, allow loss) -> the topic's segments in this broker's object store, by partition. Loss means
that fewer segments may be there than were copied. Raises KafkaError, StoreError."""

CreateTopics = Callable[[tuple[CreatableTopic, ...]], Awaitable[Sequence[CreatedTopic]]]


@dataclass(frozen=True, slots=True)
class Wish:
    """A client's request to restore a topic: the id that it had, and whether records may be missing."""

    topic_id: TopicId
    allow_loss: bool


def is_restored(topic: CreatableTopic) -> bool:
    """Return whether the topic has a setting that asks for its restoration, valid or not."""
    return not topic.configs.keys().isdisjoint((TOPIC_ID, ALLOW_LOSS))


def without_wish(topic: CreatableTopic) -> CreatableTopic:
    """Return the topic without the settings that ask for its restoration."""
    configs = {name: value for name, value in topic.configs.items() if name not in (TOPIC_ID, ALLOW_LOSS)}
    return replace(topic, configs=configs)


async def create(
    topics: tuple[CreatableTopic, ...], find: FindTiers | None, ask: CreateTopics, *, dry_run: bool
) -> list[CreatedTopic]:
    """Create topics by `ask`; returns one outcome per topic, in order. For restored topics the store is read first, but
    not in a dry run."""
    made: list[CreatedTopic | CreatableTopic] = []
    for topic in topics:
        try:
            made.append(await _with_tiers(topic, find, dry_run=dry_run) if is_restored(topic) else topic)
        except KafkaError as error:
            made.append(CreatedTopic(topic.name, error.code, error.message))
        except StoreError as error:
            made.append(CreatedTopic(topic.name, ErrorCode.KAFKA_STORAGE_ERROR, f"the object store: {error}"))
    asked = tuple(one for one in made if isinstance(one, CreatableTopic))
    answers = iter(await ask(asked) if asked else ())
    return [next(answers) if isinstance(one, CreatableTopic) else one for one in made]


async def _with_tiers(topic: CreatableTopic, find: FindTiers | None, *, dry_run: bool) -> CreatableTopic:
    wish = _wish_of(topic)
    if find is None:
        words = f"{TOPIC_ID} is set, and this broker has no object store: set remote.log.storage.url on every node"
        raise KafkaError(ErrorCode.INVALID_CONFIG, words)
    tiers = () if dry_run else await find(topic.name, wish.topic_id, wish.allow_loss)
    return replace(without_wish(topic), topic_id=wish.topic_id, is_restored=True, tiers=tiers)


def _wish_of(topic: CreatableTopic) -> Wish:
    """Parse the settings that ask for a restoration. Raises KafkaError INVALID_CONFIG."""
    text, loss = topic.configs.get(TOPIC_ID), topic.configs.get(ALLOW_LOSS, "false")
    if text is None:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{ALLOW_LOSS} goes with {TOPIC_ID} alone, which is not set")
    if loss not in ("true", "false"):
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{ALLOW_LOSS} is {loss!r}: true or false are possible")
    try:
        return Wish(UUID(text), loss == "true")
    except ValueError:
        words = f"{TOPIC_ID} is {text!r}: the id that the topic had belongs there, as `strandline tier list` shows it"
        raise KafkaError(ErrorCode.INVALID_CONFIG, words) from None
