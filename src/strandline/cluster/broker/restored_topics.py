"""CreateTopics of topics whose records lie in the object store already (rule B25).

Kafka's protocol has no call for it. Two settings, which are those of the creation and not of the topic, ask for it:
`remote.storage.restore.topic.id` and `remote.storage.restore.allow.loss`. `strandline tier restore` sends them once it
has looked at what is to be restored; the broker looks for itself, and takes nobody's word for what is in the store.
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
"""Looks in this broker's store for what is there of a topic of this cluster, by name and id; whether it may be less
than was copied. Raises KafkaError, StoreError."""

CreateTopics = Callable[[tuple[CreatableTopic, ...]], Awaitable[Sequence[CreatedTopic]]]


@dataclass(frozen=True, slots=True)
class Wish:
    """Request to restore a topic."""

    topic_id: TopicId
    allow_loss: bool


def is_restored(topic: CreatableTopic) -> bool:
    """A setting of its creation says so, rightly or not."""
    return not topic.configs.keys().isdisjoint((TOPIC_ID, ALLOW_LOSS))


def without_wish(topic: CreatableTopic) -> CreatableTopic:
    """The topic with the settings that it will have."""
    configs = {name: value for name, value in topic.configs.items() if name not in (TOPIC_ID, ALLOW_LOSS)}
    return replace(topic, configs=configs)


async def create(
    topics: tuple[CreatableTopic, ...], find: FindTiers | None, ask: CreateTopics, *, dry_run: bool
) -> list[CreatedTopic]:
    """One outcome a topic, in order. What a restored one finds in the store is read first; a dry run does not look."""
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
    """Raises KafkaError INVALID_CONFIG."""
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
