"""Dead letters read, and brought back into the topics that they came from: each once, also after an interruption.

Progress is the committed offset of the group `strandline.dead-letters` in `<topic>.dead`. Before records are sent, the
ends of the origin's partitions are noted with that offset: after an interruption what lies behind those ends tells
which letters were replayed already, for each replayed record names its letter in a header. That offset expires like
any other (a week after the last replay, `offsets.retention.minutes`). Where there is none, what lies in the origin
behind the oldest of the letters tells (schedule 65).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

from strandline.client.admin import Admin
from strandline.client.config import CommonConfig
from strandline.client.consumer import Consumer
from strandline.client.producer import Producer
from strandline.client.types import LATEST, Ack, ConsumerRecord, OffsetAndMetadata
from strandline.proto.errors import ConfigError
from strandline.proto.ids import TopicPartition
from strandline.proto.json_text import read_json
from strandline.tools.dead_letters import LARGE_RECORDS, REPLAYED, SUFFIX, DeadLetter, parse_dead_letter

GROUP = "strandline.dead-letters"
_BATCH = 500
_NOTE_BYTES = 1_900
"""Less than half of `offset.metadata.max.bytes`: the note of an interrupted batch is kept too."""


class Replayed(NamedTuple):
    """Counts of a replay, done or previewed: letters sent, those that were there already, and records that are no
    letters."""

    sent: int
    already: int
    foreign: int


def origin_of(topic: str) -> str:
    """A topic's name, whether it or its dead letters are named."""
    return topic.removesuffix(SUFFIX)


class DeadLetterBox:
    """The dead letters of one topic. One replay of a topic at a time.

    Args:
        bootstrap: as everywhere.
        topic: where the records came from.
        settings: common to all clients.
    """

    def __init__(self, bootstrap: str, topic: str, settings: Mapping[str, Any]) -> None:
        self.topic = origin_of(topic)
        self.dead = self.topic + SUFFIX
        self._bootstrap = bootstrap
        known = CommonConfig.attributes
        self._settings = {name: value for name, value in settings.items() if name in known}

    def letters(self, *, replayed_too: bool = False) -> Iterator[tuple[ConsumerRecord, DeadLetter | None]]:
        """Letters that were not replayed yet (or all), partition by partition, up to the ends of this moment.

        Raises:
            UnknownTopic: nothing has died yet.
        """
        with self._reader() as reader:
            wanted = [TopicPartition(self.dead, number) for number in reader.partitions_for(self.dead)]
            done = reader.committed(wanted)
            for item in wanted:
                offset = OffsetAndMetadata(0) if replayed_too else done[item]
                there = self._there(reader, item, offset)
                for record in self._records(reader, item, 0 if offset is None else offset.offset):
                    letter = parse_dead_letter(record)
                    if letter is None or _name(letter) not in there:
                        yield record, letter

    def replay(self) -> Replayed:
        """Send every letter back to where it came from, in order, and commit how far that is done.

        Raises:
            StrandlineError: what is not sent is sent by the next replay.
        """
        sent = already = foreign = 0
        with self._reader() as reader, Producer(self._bootstrap, **{**self._settings, **LARGE_RECORDS}) as producer:
            wanted = [TopicPartition(self.dead, number) for number in reader.partitions_for(self.dead)]
            done = reader.committed(wanted)
            for item in wanted:
                there = self._there(reader, item, done[item])
                offset = done[item] or OffsetAndMetadata(0)
                noted = _noted(offset)
                for batch in batches(self._records(reader, item, offset.offset)):
                    letters = [letter for letter in map(parse_dead_letter, batch) if letter is not None]
                    foreign += len(batch) - len(letters)
                    fresh = [letter for letter in letters if _name(letter) not in there]
                    already += len(letters) - len(fresh)
                    noted = self._ends(fresh) | noted  # of an interrupted batch the older ends count
                    note = json.dumps([[*place, end] for place, end in noted.items()])
                    reader.commit({item: OffsetAndMetadata(batch[0].offset, note)})
                    futures = [_send(producer, letter) for letter in fresh]
                    for future in futures:
                        future.result()
                    sent += len(fresh)
                    reader.commit({item: batch[-1].offset + 1})
                    noted = {}
        return Replayed(sent, already, foreign)

    def _reader(self) -> Consumer:
        return Consumer(
            self._bootstrap,
            **self._settings,
            group_id=GROUP,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )

    def _records(self, reader: Consumer, item: TopicPartition, start: int) -> Iterator[ConsumerRecord]:
        """Records of one partition from an offset to the end of this moment."""
        end = reader.end_offsets([item])[item]
        reader.assign([item])
        reader.seek(item, max(start, reader.beginning_offsets([item])[item]))
        while reader.position(item) < end:
            for record in reader.poll(1.0):
                if record.offset < end:
                    yield record

    def _ends(self, letters: Iterable[DeadLetter]) -> dict[TopicPartition, int]:
        """Ends of the partitions that letters are about to go to."""
        places = list(dict.fromkeys(letter.origin for letter in letters))
        if not places:
            return {}
        with Admin(self._bootstrap, **self._settings) as admin:
            return {item: told.offset for item, told in admin.list_offsets(dict.fromkeys(places, LATEST)).items()}

    def _there(self, reader: Consumer, item: TopicPartition, committed: OffsetAndMetadata | None) -> frozenset[bytes]:
        """The names of letters behind the committed offset that were replayed all the same, by what the origin holds:
        of an interrupted replay, or of any, where the offset has expired."""
        ends = self._behind_the_letters(reader, item) if committed is None else _noted(committed)
        if not ends:
            return frozenset()
        with self._reader() as origin:
            return frozenset(
                value
                for place, end in ends.items()
                for record in self._records(origin, place, end)
                for name, value in record.headers
                if name == REPLAYED and value is not None
            )

    def _behind_the_letters(self, reader: Consumer, item: TopicPartition) -> dict[TopicPartition, int]:
        """Start offsets from which replayed records of a partition's letters can lie in their origins: none before the
        record itself. Of a topic that was made anew since everything is looked at."""
        ids: dict[str, str] = {}
        starts: dict[TopicPartition, int] = {}
        with Admin(self._bootstrap, **self._settings) as admin:
            for letter in map(parse_dead_letter, self._records(reader, item, 0)):
                if letter is None:
                    continue
                topic = letter.origin.topic
                if topic not in ids:
                    [described] = admin.describe_topics([topic])
                    ids[topic] = str(described.topic_id or "")
                same = letter.origin_topic_id == ids[topic] != ""
                start = letter.origin_offset + 1 if same else 0
                starts[letter.origin] = min(starts.get(letter.origin, start), start)
        return starts


def batches(records: Iterable[ConsumerRecord]) -> Iterator[list[ConsumerRecord]]:
    """Groups of records to replay at once: some hundred, of so few origins that the note of their ends fits beside an
    offset. One partition of `<topic>.dead` has the letters of many when the topic has grown since it was made."""
    batch: list[ConsumerRecord] = []
    places: dict[TopicPartition, int] = {}
    for record in records:
        letter = parse_dead_letter(record)
        own = {} if letter is None else {letter.origin: len(json.dumps([*letter.origin, 2**63 - 1])) + 2}
        if len(batch) >= _BATCH or (batch and sum({**places, **own}.values()) > _NOTE_BYTES):
            yield batch
            batch, places = [], {}
        batch.append(record)
        places.update(own)
    if batch:
        yield batch


def _noted(offset: OffsetAndMetadata) -> dict[TopicPartition, int]:
    """The note of an interrupted replay; none behind a whole one."""
    if not offset.metadata:
        return {}
    try:
        return {TopicPartition(str(name), int(part)): int(end) for name, part, end in read_json(offset.metadata)}
    except (TypeError, ValueError) as error:
        raise ConfigError("metadata", offset.metadata, f"what a replay noted for group {GROUP}") from error


def _name(letter: DeadLetter) -> bytes:
    return f"{letter.where}@{letter.offset} of {letter.died_ms}".encode()


def _send(producer: Producer, letter: DeadLetter) -> Future[Ack]:
    headers = (*(header for header in letter.headers if header[0] != REPLAYED), (REPLAYED, _name(letter)))
    return producer.send(
        letter.origin.topic,
        letter.value,
        key=letter.key,
        headers=headers,
        partition=letter.origin.partition,
        timestamp_ms=letter.origin_timestamp_ms,
    )
