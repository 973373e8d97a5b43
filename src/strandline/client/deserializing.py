"""A consumer's deserializers, and the error that says which record they failed at."""

from __future__ import annotations

from strandline.client.config import ConsumerConfig, Deserializer
from strandline.client.errors import DeserializationFailed
from strandline.client.types import ConsumerRecord


class Deserializing:
    """Both deserializers of a consumer, as one step from record to record."""

    def __init__(self, config: ConsumerConfig) -> None:
        self._key = config.key_deserializer
        self._value = config.value_deserializer
        self.wanted = self._key is not None or self._value is not None
        """There is something to do."""

    def record(self, raw: ConsumerRecord) -> ConsumerRecord:
        """The record with its meaning in place of its bytes.

        Raises:
            DeserializationFailed: with topic, partition and offset, whatever the deserializer raised.
        """
        return raw._replace(
            key=_meaning(raw, "key", raw.key, self._key), value=_meaning(raw, "value", raw.value, self._value)
        )

    def records(self, raw: list[ConsumerRecord]) -> tuple[list[ConsumerRecord], DeserializationFailed | None]:
        """As many as go in order, and why not more."""
        done: list[ConsumerRecord] = []
        try:
            for one in raw:
                done.append(self.record(one))
        except DeserializationFailed as failure:
            return done, failure
        return done, None


def _meaning(raw: ConsumerRecord, field: str, data: bytes | None, deserializer: Deserializer | None) -> object:
    if data is None or deserializer is None:
        return data
    try:
        return deserializer(data)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise DeserializationFailed(raw.topic, raw.partition, raw.offset, field, why) from error
