"""Connections by which producers of the first protocol of transactions reach coordinators: only each producer's newest
one is valid.

The epoch of such a producer lasts over many transactions, so a request does not tell to which of them it belongs. An
EndTxn that is delayed in the network, until its client has given up the connection, has ended the transaction by
another one and has begun the next, would end that next transaction (KAFKA-17754); a delayed offset would be committed
with the next transaction. A client uses one connection to a coordinator at a time, and opens another only when it has
given up the last. So a request by an older connection than that of a later request is outdated, whichever arrives last.
A connection that was accepted before this coordinator's leadership is not valid either, unless the producer's epoch
began in this leadership: the client may meanwhile have gone on at the previous coordinator, whose connections are
unknown here.

A request by an invalid connection is not answered. The connection is closed, so that a client that still uses it (it
may, if its coordinator moved to a broker that it knew) repeats the request by a new connection.

A client whose offsets got no answer may also abort that transaction, and send the offsets of the next one without any
request in between. So after an abort of a transaction that has no offsets here, the first offsets by a connection from
before the abort are refused with an error that the client retries: a client that repeats them by the same connection
has read the answer, so they are not outdated. Offsets by a connection from before the leadership are refused in the
same way, and the connection is not closed: a group's coordinator does not learn when a producer begins an epoch.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, StrandlineError
from strandline.proto.marks import mark

NO_CONNECTION = 0
"""Number that stands for no connection: the request uses the second protocol, or comes from a broker."""


class ConnectionSuperseded(StrandlineError):
    """Raised for a request by a connection that is no longer valid; the connection is closed without an answer."""


class ConnectionNumbers:
    """Numbers of one broker's connections, in the order in which they were accepted.

    Attributes:
        newest: last number that was given.
    """

    def __init__(self) -> None:
        self.newest = NO_CONNECTION

    def next(self) -> int:
        """Return the number of a connection that is accepted now."""
        self.newest += 1
        return self.newest


class Superseded(NamedTuple):
    """Answer to a command of the first protocol that is not carried out: its producer has used a newer connection, or
    may have used another coordinator since it opened this one. No client waits for this answer."""


def counted(answer: Any) -> Any:
    """Return the answer. Raises ConnectionSuperseded if it is `Superseded`."""
    if isinstance(answer, Superseded):
        mark("older-connection")
        raise ConnectionSuperseded("its producer of transactions has asked, or may have asked, by a newer connection")
    return answer


class _Used(NamedTuple):
    """Newest connection of a producer.

    Attributes:
        epoch: the producer's epoch in the last request by the connection; `ANY_EPOCH`: a request by an older connection
            is refused once, with an error that the client retries.
        told: number of the older connection that was refused in this way.
        came: at least one request of the transaction that may be open has arrived.
    """

    producer_id: int
    epoch: int
    connection: int
    told: int = NO_CONNECTION
    came: bool = True


ANY_EPOCH = -1


class NewestConnections:
    """Newest connection of each producer during one leadership.

    A key identifies a producer: its transactional id, or its producer id if the transactional id is not known.
    """

    def __init__(self, numbers: ConnectionNumbers, *, kept: int | None = None, asks_again: bool = False) -> None:
        """Create it when a leadership begins. `numbers`: connection numbers of this broker. `kept`: maximum producers
        that are remembered; None: each one until `forget`. `asks_again`: requests by a connection from before the
        leadership are refused with an error that the client retries, as after an abort."""
        self._numbers = numbers
        self._kept = kept
        self._asks_again = asks_again
        self._since = numbers.newest
        self._used: dict[Hashable, _Used] = {}

    def takes(self, key: Hashable, producer_id: int, epoch: int, connection: int) -> bool:
        """Return whether a request by this connection is valid. The producer is the one that may write at this epoch.

        Raises KafkaError COORDINATOR_LOAD_IN_PROGRESS if the client has to repeat the request.
        """
        if connection == NO_CONNECTION:
            return True
        used = self._used.get(key)
        if used is None or used.producer_id != producer_id or used.epoch not in (epoch, ANY_EPOCH):
            unknown = ANY_EPOCH if self._asks_again else epoch
            used = _Used(producer_id, unknown, self._since + 1)  # rule C20/connections-of-before-the-leadership-count
        if used.epoch == ANY_EPOCH and connection < used.connection:
            if connection != used.told:  # rule C33/offsets-of-what-was-aborted-count
                self._put(key, used._replace(told=connection, came=True))
                raise KafkaError(
                    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "it may be of a transaction before: say it again"
                )
        elif connection < used.connection:  # rule C20/older-connections-count
            return False
        self._put(key, _Used(producer_id, epoch, connection))
        return True

    def begins(self, key: Hashable, producer_id: int, epoch: int) -> None:
        """Note that a producer's epoch begins now: no request has used it yet."""
        self._put(key, _Used(producer_id, epoch, NO_CONNECTION))

    def ends(self, key: Hashable, producer_id: int, *, came: bool) -> None:
        """Note that a producer's transaction ended. If nothing of it arrived, its client may have sent a request and
        given up, and the request may still arrive by a connection that exists now. `came`: a request is known to have
        arrived, or none will arrive."""
        used = self._used.get(key)
        if used is not None and used.came:
            self._put(key, used._replace(came=False))
        elif not came:
            self._put(key, _Used(producer_id, ANY_EPOCH, self._numbers.newest + 1, came=False))

    def forget(self, key: Hashable) -> None:
        """Forget a producer that no longer exists."""
        self._used.pop(key, None)

    def _put(self, key: Hashable, used: _Used) -> None:
        self._used.pop(key, None)
        self._used[key] = used
        if self._kept is not None and len(self._used) > self._kept:
            del self._used[next(iter(self._used))]
            self._since = self._numbers.newest  # rule C33/forgotten-producers-ask-by-any-connection
