"""What members subscribe to, against the topics that there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from strandline.cluster.groups.consumer_protocol.pattern import PatternError, TopicPattern
from strandline.cluster.groups.partitions import OFFSETS_TOPIC
from strandline.controller.metadata.image import MetadataImage
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.kafka.consumer_group_records import MemberInfo, TopicShape

PATTERNS_MAX = 1_000
"""Compiled patterns that are kept."""

INTERNAL = (OFFSETS_TOPIC, "__transaction_state")
"""A pattern does not match these: `.*` does not mean them."""


class Subscriptions:
    """Names and patterns become topics."""

    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        self._image = image
        self._patterns: dict[str, TopicPattern | None] = {}

    def check(self, regex: str) -> None:
        """Raises KafkaError INVALID_REGULAR_EXPRESSION."""
        try:
            if regex not in self._patterns:
                pattern = TopicPattern(regex)
                pattern.check(self._image().topics)
                self._keep(regex, pattern)
        except PatternError as error:
            raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, f"{regex[:100]!r}: {error}") from error

    def _keep(self, regex: str, pattern: TopicPattern | None) -> None:
        if len(self._patterns) >= PATTERNS_MAX:
            self._patterns.clear()
        self._patterns[regex] = pattern

    def _pattern(self, regex: str) -> TopicPattern | None:
        """None for one that another version accepted and this one does not: it matches nothing."""
        if regex not in self._patterns:
            try:
                self._keep(regex, TopicPattern(regex))
            except PatternError:
                self._keep(regex, None)
        return self._patterns[regex]

    def topics(self, members: Iterable[MemberInfo]) -> dict[str, TopicShape]:
        """The topics that exist and that any of the members reads."""
        known = self._image().topics
        names: dict[str, None] = {}
        patterns: dict[str, None] = {}
        for member in members:
            names.update(dict.fromkeys(member.topics))
            if member.regex is not None:
                patterns[member.regex] = None
        for regex in patterns:
            pattern = self._pattern(regex)
            if pattern is not None:
                names.update(dict.fromkeys(name for name in known if name not in INTERNAL and pattern.matches(name)))
        return {
            name: TopicShape(known[name].topic_id, len(known[name].partitions))
            for name in sorted(names)
            if name in known
        }

    def of(self, member: MemberInfo, topics: Mapping[str, TopicShape]) -> frozenset[str]:
        """Those of `topics` that one member reads."""
        found = {name for name in member.topics if name in topics}
        pattern = None if member.regex is None else self._pattern(member.regex)
        if pattern is not None:
            found.update(name for name in topics if name not in INTERNAL and pattern.matches(name))
        return frozenset(found)
