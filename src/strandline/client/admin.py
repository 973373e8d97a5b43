"""The blocking admin client: the asynchronous one on a thread of its own."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack
from uuid import UUID

from strandline.client.aio.admin import Admin as AsyncAdmin
from strandline.client.aio.admin_groups import GroupOffsets
from strandline.client.loop_thread import LoopThread, of_parents
from strandline.client.settings import AdminSettings
from strandline.client.types import (
    ClusterDescription,
    ConfigChange,
    ConfigEntry,
    ConfigResource,
    CreatedTopic,
    Election,
    GroupDescription,
    GroupListing,
    ListedOffset,
    LogDirDescription,
    NewTopic,
    OffsetAndMetadata,
    ProducerDescription,
    QuorumDescription,
    TopicDescription,
)
from strandline.client.unclosed import nothing, watch
from strandline.proto.ids import TopicPartition

T = TypeVar("T")


class Admin:
    """Describes and changes a cluster. May be shared by threads, and in the child of a fork starts anew.

    Every method does and raises what its twin in `strandline.client.aio.Admin` does.
    """

    def __init__(self, bootstrap: str | Sequence[str] = "127.0.0.1:9092", **settings: Unpack[AdminSettings]) -> None:
        make: Callable[..., AsyncAdmin] = AsyncAdmin
        self._make = partial(make, bootstrap, **settings)
        self.inner = self._make()
        self._thread: LoopThread | None = None
        self._watched: Callable[[], None] = nothing
        _admins.add(self)

    def create_topics(self, topics: Iterable[NewTopic], *, validate_only: bool = False) -> dict[str, CreatedTopic]:
        """Create topics; with `validate_only` the brokers check everything and create nothing."""
        return self.wait(self.inner.create_topics(topics, validate_only=validate_only))

    def delete_topics(self, names: Iterable[str], *, dry_run: bool = False) -> list[str]:
        """Delete topics with all their records; `dry_run` only checks that they exist."""
        return self.wait(self.inner.delete_topics(names, dry_run=dry_run))

    def create_partitions(self, totals: Mapping[str, int], *, validate_only: bool = False) -> None:
        """Raise the number of partitions of topics to these totals."""
        self.wait(self.inner.create_partitions(totals, validate_only=validate_only))

    def elect_leaders(
        self, partitions: Iterable[TopicPartition | tuple[str, int]] | None, *, unclean: bool, dry_run: bool = False
    ) -> list[Election]:
        """Give leadership to the preferred replicas or, `unclean`, to any live one; `dry_run` tells the cost."""
        return self.wait(self.inner.elect_leaders(partitions, unclean=unclean, dry_run=dry_run))

    def list_topics(self, *, include_internal: bool = False) -> list[str]:
        """The names of all topics, sorted."""
        return self.wait(self.inner.list_topics(include_internal=include_internal))

    def describe_topics(self, names: Iterable[str] | None, *, include_internal: bool = False) -> list[TopicDescription]:
        """Leaders, replicas, ISR and eligible leader replicas of every partition, in the order of `names`; None: of
        every topic at one moment, without the eligible leader replicas, and of internal ones with `include_internal`
        alone."""
        return self.wait(self.inner.describe_topics(names, include_internal=include_internal))

    def describe_cluster(self) -> ClusterDescription:
        """The brokers, fenced ones included where the cluster tells them."""
        return self.wait(self.inner.describe_cluster())

    def describe_quorum(self) -> QuorumDescription:
        """The metadata quorum: leader, epoch, high watermark, voters and observers with their log ends."""
        return self.wait(self.inner.describe_quorum())

    def remove_voter(self, node_id: int, directory_id: UUID | None) -> None:
        """Take the vote of a controller that lost its log; its place stays vacant."""
        self.wait(self.inner.remove_voter(node_id, directory_id))

    def add_voter(self, node_id: int, directory_id: UUID) -> None:
        """Give a controller's vacant vote to a directory that has caught up."""
        self.wait(self.inner.add_voter(node_id, directory_id))

    def list_offsets(
        self, wanted: Mapping[TopicPartition | tuple[str, int], int], *, read_committed: bool = False
    ) -> dict[TopicPartition, ListedOffset]:
        """The offset for EARLIEST, LATEST, MAX_TIMESTAMP or a time in ms, asked of each partition's leader."""
        return self.wait(self.inner.list_offsets(wanted, read_committed=read_committed))

    def describe_configs(
        self, resources: Iterable[ConfigResource], *, documentation: bool = False
    ) -> dict[ConfigResource, list[ConfigEntry]]:
        """Every setting of topics and brokers with where its value comes from."""
        return self.wait(self.inner.describe_configs(resources, documentation=documentation))

    def alter_configs(
        self, changes: Mapping[ConfigResource, Sequence[ConfigChange]], *, validate_only: bool = False
    ) -> None:
        """Change single settings and leave the others; `validate_only` checks and changes nothing."""
        self.wait(self.inner.alter_configs(changes, validate_only=validate_only))

    def delete_records(
        self, before: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int]
    ) -> dict[TopicPartition, int]:
        """Delete the records before an offset of each partition (-1: before the high watermark). The log starts now."""
        return self.wait(self.inner.delete_records(before))

    def describe_log_dirs(self, brokers: Iterable[int] | None = None) -> dict[int, list[LogDirDescription]]:
        """What each broker (None: every one) keeps on its disks."""
        return self.wait(self.inner.describe_log_dirs(brokers))

    def describe_producers(
        self, partitions: Iterable[TopicPartition | tuple[str, int]]
    ) -> dict[TopicPartition, list[ProducerDescription]]:
        """The idempotent producers that each partition's leader remembers, by their ids."""
        return self.wait(self.inner.describe_producers(partitions))

    def list_groups(self) -> list[GroupListing]:
        """Every group of the cluster, by name."""
        return self.wait(self.inner.list_groups())

    def describe_groups(self, groups: Iterable[str]) -> dict[str, GroupDescription]:
        """State, members and assignments, in the order of `groups`."""
        return self.wait(self.inner.describe_groups(groups))

    def delete_groups(self, groups: Iterable[str]) -> list[str]:
        """Delete groups without members, with all that they have committed."""
        return self.wait(self.inner.delete_groups(groups))

    def list_group_offsets(
        self, group: str, partitions: Iterable[TopicPartition | tuple[str, int]] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What a group has committed, of these partitions or of all; those without an offset are left out."""
        return self.wait(self.inner.list_group_offsets(group, partitions))

    def alter_group_offsets(self, group: str, offsets: GroupOffsets) -> None:
        """Commit for a group without members."""
        self.wait(self.inner.alter_group_offsets(group, offsets))

    def delete_group_offsets(self, group: str, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Forget what a group has committed of partitions that no member subscribes to."""
        self.wait(self.inner.delete_group_offsets(group, partitions))

    def close(self) -> None:
        """Close the connections. Idempotent."""
        if self._thread is not None:
            self._watched()
            self._thread.stop(self.inner.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine beside the asynchronous twin, `inner`; its result."""
        if self._thread is None:
            self._thread = thread = LoopThread("strandline-admin")
            self._watched = watch(self, "an Admin", thread, partial(thread.stop, self.inner.close))
        return self._thread.wait(coroutine)

    def _forget_parent(self) -> None:
        """In the child of a fork: the parent's thread and sockets are not ours."""
        if self._thread is None or not self._thread.loop.is_closed():  # one that was closed stays so
            of_parents.append(self.inner)
            self._thread = None
            self.inner = self._make()


_admins: weakref.WeakSet[Admin] = weakref.WeakSet()


def _after_fork() -> None:
    for admin in list(_admins):
        admin._forget_parent()


os.register_at_fork(after_in_child=_after_fork)
