"""Where the partitions of a group's consumer begin: at what the group has committed, once the topic is known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from strandline.client.fetcher import PartitionState
from strandline.client.groups.commits import Commits
from strandline.client.metadata import Metadata
from strandline.client.tasks import Tasks
from strandline.client.types import OffsetAndMetadata
from strandline.proto.errors import StrandlineError
from strandline.proto.ids import TopicPartition


class Beginnings:
    """Runs on one event loop.

    Invariant: nothing is read of a partition that is asked for here, and no position of it is looked up elsewhere
    (`PartitionState.placing`).

    Args:
        states: of the consumer's partitions, as they come and go.
        wake_poll: called when a poll that waits can perhaps read, or place, something.
    """

    def __init__(
        self,
        states: Mapping[TopicPartition, PartitionState],
        commits: Commits,
        metadata: Metadata,
        tasks: Tasks,
        *,
        timeout_ms: float,
        wake_poll: Callable[[], None],
    ) -> None:
        self._states = states
        self._commits = commits
        self._metadata = metadata
        self._tasks = tasks
        self._timeout_ms = timeout_ms
        self._wake_poll = wake_poll
        self._asked: dict[TopicPartition, int] = {}
        """Each with the number under which it was asked for: an answer to an earlier question is none."""
        self._last_number = 0
        self._asking: asyncio.Task[None] | None = None
        self._error: StrandlineError | None = None
        """The last attempt has failed, and no poll has said so yet."""
        metadata.subscribe(self._topics_came)

    def ask(self, partitions: Iterable[TopicPartition]) -> None:
        """The next `place` has it found where these begin."""
        self._last_number += 1
        for item in partitions:
            self._asked[item] = self._last_number
            self._states[item].placing = True

    def drop(self, item: TopicPartition) -> None:
        """It begins elsewhere, or is not read any more."""
        if item in self._asked:
            del self._asked[item]
            if item in self._states:
                self._states[item].placing = False

    def drop_given_up(self) -> None:
        """What is not read any more need not be found."""
        self._asked = {item: number for item, number in self._asked.items() if item in self._states}

    def place(self) -> None:
        """Have the partitions begun that were asked for: those whose topic is known; the others with another call.

        It goes on when the poll that called this has ended: no poll waits longer for it than it was told to wait.

        Raises:
            KafkaError, ClientTimeout: the last attempt has failed so.
        """
        error, self._error = self._error, None
        if error is not None:
            raise error.with_traceback(None)
        if self._asked and self._asking is None:
            self._asking = self._tasks.spawn("a look-up of what a group has committed", self._place())

    async def _place(self) -> None:
        asked = dict(self._asked)
        try:
            found = await self._commits.stored(list(asked), self._timeout_ms)
        except StrandlineError as error:
            self._error = error
        else:
            for item, offset in found.items():
                if self._asked.get(item) == asked[item]:
                    self.begin(item, offset)
        finally:
            self._asking = None
        news = self._error is not None or self._asked != asked
        for item in self._asked:
            if not self._metadata.is_known(item.topic):
                state = self._states[item]
                if state.error is None:  # else a poll has not said so yet, and is not to look again at once
                    state.error = self._metadata.absence(item)
                    news = news or state.error is not None
                self._metadata.want((item.topic,))
                self._metadata.request_update()
        if news:
            self._wake_poll()

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
            # A newer leader is asked whether it has what was read (KIP-320).
            state.checked_epoch = offset.leader_epoch  # rule B39/commits-pass-over-a-cut

    def _topics_came(self) -> None:
        if self._asked:
            self._wake_poll()
