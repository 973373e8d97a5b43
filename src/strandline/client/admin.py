"""The blocking admin client: the asynchronous one on a thread of its own."""

from __future__ import annotations

import os
import weakref
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Self, TypeVar, Unpack

from strandline.client.aio.admin import Admin as AsyncAdmin
from strandline.client.loop_thread import LoopThread, nothing_to_await, of_parents
from strandline.client.settings import AdminSettings
from strandline.client.twins import waiting
from strandline.client.unclosed import nothing, watch

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

    create_topics = waiting(AsyncAdmin.create_topics)
    delete_topics = waiting(AsyncAdmin.delete_topics)
    create_partitions = waiting(AsyncAdmin.create_partitions)
    elect_leaders = waiting(AsyncAdmin.elect_leaders)
    list_topics = waiting(AsyncAdmin.list_topics)
    describe_topics = waiting(AsyncAdmin.describe_topics)
    describe_cluster = waiting(AsyncAdmin.describe_cluster)
    describe_quorum = waiting(AsyncAdmin.describe_quorum)
    describe_features = waiting(AsyncAdmin.describe_features)
    update_features = waiting(AsyncAdmin.update_features)
    remove_voter = waiting(AsyncAdmin.remove_voter)
    add_voter = waiting(AsyncAdmin.add_voter)
    list_offsets = waiting(AsyncAdmin.list_offsets)
    epoch_ends = waiting(AsyncAdmin.epoch_ends)
    describe_configs = waiting(AsyncAdmin.describe_configs)
    alter_configs = waiting(AsyncAdmin.alter_configs)
    delete_records = waiting(AsyncAdmin.delete_records)
    describe_log_dirs = waiting(AsyncAdmin.describe_log_dirs)
    alter_replica_log_dirs = waiting(AsyncAdmin.alter_replica_log_dirs)
    describe_producers = waiting(AsyncAdmin.describe_producers)
    list_groups = waiting(AsyncAdmin.list_groups)
    describe_groups = waiting(AsyncAdmin.describe_groups)
    delete_groups = waiting(AsyncAdmin.delete_groups)
    list_group_offsets = waiting(AsyncAdmin.list_group_offsets)
    alter_group_offsets = waiting(AsyncAdmin.alter_group_offsets)
    delete_group_offsets = waiting(AsyncAdmin.delete_group_offsets)
    describe_scram_credentials = waiting(AsyncAdmin.describe_scram_credentials)
    alter_scram_credentials = waiting(AsyncAdmin.alter_scram_credentials)
    describe_acls = waiting(AsyncAdmin.describe_acls)
    create_acls = waiting(AsyncAdmin.create_acls)
    delete_acls = waiting(AsyncAdmin.delete_acls)
    describe_client_quotas = waiting(AsyncAdmin.describe_client_quotas)
    alter_client_quotas = waiting(AsyncAdmin.alter_client_quotas)

    def close(self) -> None:
        """Close the connections. Idempotent."""
        if self._thread is not None:
            self._watched()
            self._thread.stop(self.inner.close)
            self._thread.raise_left()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self, begin: Callable[[], Awaitable[T]]) -> T:
        """Run the coroutine that `begin` makes beside the asynchronous twin, `inner`; its result."""
        if self._thread is None:
            thread = LoopThread("strandline-admin")
            if self._thread is None:
                self._thread = thread
                self._watched = watch(self, "an Admin", thread, partial(thread.stop, self.inner.close))
            else:  # another thread, or a signal's handler, was faster
                thread.stop(nothing_to_await)
        return self._thread.wait(begin)

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
