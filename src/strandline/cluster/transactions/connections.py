"""Connections by which producers of the first protocol ask their coordinator: each one's newest counts, and no other.

The epoch of such a producer lasts over many transactions, so that nothing in a request tells which of them it is of. An
end that waits in the network, until its client has given the connection up, has ended the transaction by another one
and begun the next, would end that (KAFKA-17754). A client asks one coordinator by one connection at a time, and opens
another one only when it has given up the last. So a request by an older connection than a later one came by is of the
past, whoever it reaches last. Nor does one count that was accepted before this coordinator's leadership, unless the
producer's epoch is of this leadership: the client may have gone on meanwhile at the coordinator before, of whose
connections nothing is known here.

Nobody is told of a request that does not count. Its connection is closed, so that a client that uses it still, as it
may where its coordinator has moved to a broker that it knew, sends the request again by a new one.
"""

from __future__ import annotations

from typing import NamedTuple

from strandline.proto.errors import StrandlineError

NO_CONNECTION = 0
"""Of requests that are of the second protocol, or of a broker."""


class ConnectionSuperseded(StrandlineError):
    """A request came by a connection that does not count any more: it is closed without an answer."""


class ConnectionNumbers:
    """Numbers of one broker's connections, in the order in which they were accepted.

    Attributes:
        newest: the last one that was given.
    """

    def __init__(self) -> None:
        self.newest = NO_CONNECTION

    def next(self) -> int:
        """Number of a connection that is accepted now."""
        self.newest += 1
        return self.newest


class _Used(NamedTuple):
    producer_id: int
    epoch: int
    connection: int


class NewestConnections:
    """The newest connection of each producer, by its transactional id, for the time of one leadership."""

    def __init__(self, since: int) -> None:
        """`since`: the newest connection of the broker as the leadership begins."""
        self._since = since
        self._used: dict[str, _Used] = {}

    def takes(self, transactional_id: str, producer_id: int, epoch: int, connection: int) -> bool:
        """Whether a request counts that the producer, which is the one that may write, sent by this connection."""
        if connection == NO_CONNECTION:
            return True
        used = self._used.get(transactional_id)
        if used is None or (used.producer_id, used.epoch) != (producer_id, epoch):
            used = _Used(producer_id, epoch, self._since + 1)  # rule C20/connections-of-before-the-leadership-count
        if connection < used.connection:  # rule C20/older-connections-count
            return False
        self._used[transactional_id] = used._replace(connection=connection)
        return True

    def begins(self, transactional_id: str, producer_id: int, epoch: int) -> None:
        """A producer has this epoch from now on: nobody has asked anything under it."""
        self._used[transactional_id] = _Used(producer_id, epoch, NO_CONNECTION)

    def forget(self, transactional_id: str) -> None:
        """The id is not known any more."""
        self._used.pop(transactional_id, None)
