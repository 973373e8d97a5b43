"""Where the partitions of a group's consumer begin: at what the group has committed, once the topic is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from strandline.client.groups.commits import Commits
from strandline.client.metadata import Metadata
from strandline.client.positions import PartitionState
from strandline.client.types import OffsetAndMetadata
from strandline.proto.ids import TopicPartition


class Beginnings:
    """Runs on one event loop.

    Invariant: nothing is read of a partition that is asked for here, and no position of it is looked up elsewhere
    (`PartitionState.resolving`).

    Args:
        states: of the consumer's partitions, as they come and go.
        wake_poll: called when a poll that waits can perhaps place something.
    """

    def __init__(
        self,
        states: Mapping[TopicPartition, PartitionState],
        commits: Commits,
        metadata: Metadata,
        *,
        timeout_ms: float,
        wake_poll: Callable[[], None],
    ) -> None:
        self._states = states
        self._commits = commits
        self._metadata = metadata
        self._timeout_ms = timeout_ms
        self._wake_poll = wake_poll
        self._asked: dict[TopicPartition, None] = {}
        metadata.subscribe(self._topics_came)

    def ask(self, partitions: Iterable[TopicPartition]) -> None:
        """The next `place` finds where these begin."""
        for item in partitions:
            self._asked[item] = None
            self._states[item].resolving = True

    def drop(self, item: TopicPartition) -> None:
        """It begins elsewhere, or is not read any more."""
        if item in self._asked:
            del self._asked[item]
            if item in self._states:
                self._states[item].resolving = False

    def drop_given_up(self) -> None:
        """What is not read any more need not be found."""
        self._asked = {item: None for item in self._asked if item in self._states}

    async def place(self) -> None:
        """Begin the partitions that were asked for, those whose topic is known; the others with another call.

        Raises:
            KafkaError, ClientTimeout.
        """
        if not self._asked:
            return
        found = await self._commits.stored(list(self._asked), self._timeout_ms)
        for item, offset in found.items():
            if item in self._asked:
                self.begin(item, offset)
        for item in self._asked:
            if not self._metadata.is_known(item.topic):
                self._states[item].error = self._metadata.absence(item)
                self._metadata.want((item.topic,))
                self._metadata.request_update()

    def begin(self, item: TopicPartition, offset: OffsetAndMetadata | None) -> None:
        """The group has committed this (None: nothing). A seek meanwhile goes before it."""
        state = self._states[item]
        if offset is not None and state.is_of_another(offset.topic_id):
            return  # the topic was made anew since the last poll looked: the next look says so first
        self.drop(item)
        self._commits.progress.start(item, offset)
        if offset is not None and state.position is None and state.reset_to is None:
            state.seek(offset.offset, offset.leader_epoch)
            state.topic_id = offset.topic_id
            state.checked_epoch = offset.leader_epoch  # a newer leader is asked whether it has what was read (KIP-320)

    def _topics_came(self) -> None:
        if self._asked:
            self._wake_poll()
