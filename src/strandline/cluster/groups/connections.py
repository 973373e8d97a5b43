"""Connections by which producers of the first protocol ask coordinators: each one's newest counts, and no other.

The epoch of such a producer lasts over many transactions, so that nothing in a request tells which of them it is of. An
end that waits in the network, until its client has given the connection up, has ended the transaction by another one
and begun the next, would end that (KAFKA-17754); an offset that waits so would be committed with the next. A client
asks one coordinator by one connection at a time, and opens another one only when it has given up the last. So a request
by an older connection than a later one came by is of the past, whoever it reaches last. Nor does one count that was
accepted before this coordinator's leadership, unless the producer's epoch is of this leadership: the client may have
gone on meanwhile at the coordinator before, of whose connections nothing is known here.

Nobody is told of a request that does not count. Its connection is closed, so that a client that uses it still, as it
may where its coordinator has moved to a broker that it knew, sends the request again by a new one.

A client whose offsets got no answer may also abort that transaction, and bring the offsets of the next one without any
that came between. So behind an abort the first offsets that come by a connection of before it are refused with an error
that tells to ask again: whoever does so by the same connection has read the answer, and is not of the past. Offsets by
a connection of before the leadership are refused likewise, instead of the connection being closed: a group's
coordinator does not hear of it when a producer begins an epoch.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, StrandlineError
from strandline.proto.marks import mark

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


class Superseded(NamedTuple):
    """Answer to a command of the first protocol that is not carried out: its producer has asked by a newer connection,
    or may have asked another coordinator since it opened this one. Nobody waits for an answer of it."""


def counted(answer: Any) -> Any:
    """The answer. Raises ConnectionSuperseded: there is none."""
    if isinstance(answer, Superseded):
        mark("older-connection")
        raise ConnectionSuperseded("its producer of transactions has asked, or may have asked, by a newer connection")
    return answer


class _Used(NamedTuple):
    """The newest connection of a producer.

    Attributes:
        epoch: under which it asked by that; `ANY_EPOCH`: it has asked for nothing yet, or for nothing since it aborted.
        told: the older connection by which it was told to say it again.
    """

    producer_id: int
    epoch: int
    connection: int
    told: int = NO_CONNECTION


ANY_EPOCH = -1


class NewestConnections:
    """The newest connection of each producer, for the time of one leadership.

    A key is what a producer is known by: its transactional id, or its producer id where nothing else is known.
    """

    def __init__(self, numbers: ConnectionNumbers, *, kept: int | None = None, asks_again: bool = False) -> None:
        """`numbers`: of the broker, whose leadership begins now. `kept`: so many producers are remembered; None: each
        one, until it is forgotten. `asks_again`: who comes by a connection of before the leadership is told to say it
        again, as behind an abort."""
        self._numbers = numbers
        self._kept = kept
        self._asks_again = asks_again
        self._since = numbers.newest
        self._used: dict[Hashable, _Used] = {}

    def takes(self, key: Hashable, producer_id: int, epoch: int, connection: int) -> bool:
        """Whether a request counts that the producer, which is the one that may write, sent by this connection.

        Raises KafkaError COORDINATOR_LOAD_IN_PROGRESS: it has to be said again (`gives_up`).
        """
        if connection == NO_CONNECTION:
            return True
        used = self._used.get(key)
        if used is None or used.producer_id != producer_id or used.epoch not in (epoch, ANY_EPOCH):
            unknown = ANY_EPOCH if self._asks_again else epoch
            used = _Used(producer_id, unknown, self._since + 1)  # rule C20/connections-of-before-the-leadership-count
        if used.epoch == ANY_EPOCH and connection < used.connection:
            if connection != used.told:  # rule C33/offsets-of-what-was-aborted-count
                self._put(key, used._replace(told=connection))
                raise KafkaError(
                    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "it may be of a transaction before: say it again"
                )
        elif connection < used.connection:  # rule C20/older-connections-count
            return False
        self._put(key, _Used(producer_id, epoch, connection))
        return True

    def begins(self, key: Hashable, producer_id: int, epoch: int) -> None:
        """A producer has this epoch from now on: nobody has asked anything under it."""
        self._put(key, _Used(producer_id, epoch, NO_CONNECTION))

    def gives_up(self, key: Hashable, producer_id: int) -> None:
        """A producer's transaction was aborted: what it asked for in that may be under way still, by a connection of
        until now."""
        self._put(key, _Used(producer_id, ANY_EPOCH, self._numbers.newest + 1))

    def forget(self, key: Hashable) -> None:
        """The producer is not known any more."""
        self._used.pop(key, None)

    def _put(self, key: Hashable, used: _Used) -> None:
        self._used.pop(key, None)
        self._used[key] = used
        if self._kept is not None and len(self._used) > self._kept:
            del self._used[next(iter(self._used))]
            self._since = self._numbers.newest  # rule C33/forgotten-producers-ask-by-any-connection
