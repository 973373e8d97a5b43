"""Subscriptions of members, resolved to existing topics.

Regular expressions over topic names have RE2's syntax, as in Kafka (KIP-848), and bounds on memory and time, because
the coordinator runs an expression that any client may send. Python's `re` backtracks: `(a*)*b` would stop the node for
minutes. RE2 takes time linear in the name, but up to the size of the expression for each character, and there may be
many topics: so the cost of an expression is bounded before it is matched. It has to match the whole name, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from strandline.controller.metadata.image import MetadataImage
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.internal_topics import INTERNAL_TOPICS
from strandline.proto.kafka.consumer_group_records import MemberInfo, TopicShape

PATTERN_CHARS_MAX = 1024
INSTRUCTIONS_MAX = 10_000
"""Maximum instructions of a compiled expression: `a{1000}` has a thousand, a `.` has eight."""

WORK_MAX = 100_000_000
"""Maximum of instructions times characters of all topic names, when an expression is first matched: at most 1 s in the
worst case seen (6 ns each), usually a hundredth of that."""

MEMORY_BYTES_MAX = 1 << 20
"""Maximum bytes of memory of one expression, including RE2's cache of matching states."""

RESULTS_MAX = 100_000


class PatternError(ValueError):
    """The expression cannot be used; the text is the reason."""


class TopicPattern:
    """Compiled expression. Raises PatternError for an expression that cannot be used."""

    def __init__(self, text: str) -> None:
        if len(text) > PATTERN_CHARS_MAX:
            raise PatternError(f"longer than {PATTERN_CHARS_MAX} characters")
        self.text = text
        self._compiled = _compiled(text)
        size = self._compiled.programsize
        if size > INSTRUCTIONS_MAX:
            raise PatternError(f"the expression has {size} instructions, more than {INSTRUCTIONS_MAX}")
        self._known: dict[str, bool] = {}

    def check(self, names: Iterable[str]) -> None:
        """Raises PatternError if matching all topics would cost too much."""
        work = self._compiled.programsize * sum(map(len, names))
        if work > WORK_MAX:
            raise PatternError("it costs too much to hold it against the topics; make it simpler")

    def matches(self, name: str) -> bool:
        """Return whether the pattern matches the whole name."""
        known = self._known.get(name)
        if known is None:
            if len(self._known) >= RESULTS_MAX:
                self._known.clear()
            known = self._known[name] = self._compiled.fullmatch(name) is not None
        return known


def _compiled(text: str) -> Any:
    import re2  # on first use: with its runtime it takes 3 MB

    options = re2.Options()
    options.max_mem = MEMORY_BYTES_MAX
    options.never_capture = True
    options.log_errors = False  # not to standard error: the member gets them
    try:
        return re2.compile(text, options=options)
    except re2.error as error:
        [reason] = error.args
        raise PatternError(reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)) from None
    except UnicodeEncodeError:
        raise PatternError("half of a surrogate pair is no character") from None


PATTERNS_MAX = 1_000
"""Maximum compiled patterns that are kept."""


class Subscriptions:
    """Resolves topic names and patterns of subscriptions to topics."""

    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        self._image = image
        self._patterns: dict[str, TopicPattern | None] = {}

    def check(self, regex: str) -> None:
        """Check an expression. Raises KafkaError INVALID_REGULAR_EXPRESSION."""
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
        """Compile a pattern. Returns None if another version accepted it and this one does not: it matches no topic."""
        if regex not in self._patterns:
            try:
                self._keep(regex, TopicPattern(regex))
            except PatternError:
                self._keep(regex, None)
        return self._patterns[regex]

    def topics(self, members: Iterable[MemberInfo]) -> dict[str, TopicShape]:
        """Return the existing topics that any of the members subscribes to."""
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
                names.update(
                    dict.fromkeys(name for name in known if name not in INTERNAL_TOPICS and pattern.matches(name))
                )
        return {
            name: TopicShape(known[name].topic_id, len(known[name].partitions))
            for name in sorted(names)
            if name in known
        }

    def of(self, member: MemberInfo, topics: Mapping[str, TopicShape]) -> frozenset[str]:
        """Return those of `topics` that one member subscribes to."""
        found = {name for name in member.topics if name in topics}
        pattern = None if member.regex is None else self._pattern(member.regex)
        if pattern is not None:
            found.update(name for name in topics if name not in INTERNAL_TOPICS and pattern.matches(name))
        return frozenset(found)
