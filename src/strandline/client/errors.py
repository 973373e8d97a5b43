"""Errors that only a client raises. They extend the tree in `strandline.proto.errors`.

StrandlineError
├── KafkaError                        the broker's answer, by Kafka's name and number
│   ├── UnknownTopic                  UNKNOWN_TOPIC_OR_PARTITION, with the command that creates the topic
│   └── AuthenticationFailed          SASL: the brokers refuse this user; asking again does not help
├── ConfigError                       a setting that cannot stand
├── MissingExtra                      a library is not installed; says what to type
└── ClientError
    ├── ClientTimeout                 nothing came in time; `last_error` says what was met on the way
    │   ├── BufferExhausted           `buffer.memory` stayed full for `max.block.ms`: nothing was queued
    │   ├── OutcomeUnknown            how a transaction ends is not known yet: it goes on; wait for it by another call
    │   └── DeliveryTimeout           `delivery.timeout.ms` passed: whether the record is in the log is unknown
    ├── BrokerUnreachable             an address did not answer; names the address and where it came from
    ├── TokenUnavailable              no token to log in with came from the token endpoint: names it, and what is wrong
    ├── Disconnected                  the connection broke while a request was out
    ├── ClosedError                   the client was closed, or belongs to the parent of a fork
    ├── PositionLost                  a partition cannot be read on: each poll says so, until a seek
    │   ├── NoOffsetForPartition      no position, and `auto.offset.reset=none`
    │   ├── OffsetOutOfRange          the position is outside the log; carries requested, log start and end
    │   ├── LogTruncated              records that were read have been cut off the log (leader epoch check)
    │   └── TopicReplaced             the topic was deleted, and another one has its name: offsets mean other records
    ├── TransactionAbortable          the open transaction cannot be committed: abort it, then begin it again
    ├── TransactionFatal              a transactional producer can do nothing more: close it, and make another one
    │   └── ProducerFenced            a newer producer has its transactional.id, or its transaction took too long
    ├── CommitFailed                  the group has moved on without this member: nothing was committed
    ├── MembershipLost                the member left, or was thrown out, between two polls; in `Consumer.state`
    ├── DeserializationFailed         a deserializer raised; carries topic, partition, offset, and which field
    └── ManyErrors                    several names were asked for and some failed: `results` and `errors`
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, StrandlineError
from strandline.proto.internal_topics import how_to_make


class ClientError(StrandlineError):
    """A request failed in the client, or on its way to a broker or back."""


class ClientTimeout(ClientError, TimeoutError):
    """No answer in time. `last_error` is the last failure during the wait, or None."""

    def __init__(self, message: str, last_error: BaseException | None = None) -> None:
        self.last_error = last_error
        super().__init__(message if last_error is None else f"{message}; last error: {last_error}")


class BufferExhausted(ClientTimeout):
    """`buffer.memory` stayed full for `max.block.ms`; the record was not queued and may be sent again."""


class DeliveryTimeout(ClientTimeout):
    """No acknowledgement within `delivery.timeout.ms`. The record may or may not be in the log."""


class OutcomeUnknown(ClientTimeout):
    """The end of a transaction was not confirmed within `max.block.ms`: it may be committed, aborted or still open.

    The end is still in progress: repeat the same call to wait for it. No other call to the producer is allowed until
    then.
    """


class TransactionAbortable(ClientError):
    """The open transaction cannot be committed because of an error in it, the `__cause__`. Abort it, then begin it
    again with the same producer. No read_committed consumer will see its records."""


class TransactionFatal(ClientError):
    """A transactional producer has failed for good; the reason is the `__cause__`. Close it and create another one: its
    first transaction aborts the open one."""


class ProducerFenced(TransactionFatal):
    """A newer producer uses the same transactional.id, or the coordinator has aborted a transaction that was open for
    longer than `transaction.timeout.ms`."""


class BrokerUnreachable(ClientError):
    """No broker answers at an address. `endpoint` is the address, `advertised_by` where the client got it from."""

    def __init__(self, endpoint: str, reason: str, advertised_by: str | None = None) -> None:
        self.endpoint = endpoint
        self.reason = reason
        self.advertised_by = advertised_by
        text = f"cannot connect to {endpoint}: {reason}"
        if advertised_by is not None:
            text += f". {advertised_by}"
        super().__init__(text)


class TokenUnavailable(ClientError):
    """With OAUTHBEARER: the token endpoint gave no token now, but may give one later. The message contains no secret.

    If the endpoint refuses the client (e.g. its id or secret is wrong), AuthenticationFailed is raised instead.
    """


class Disconnected(ClientError):
    """The connection broke before the answer to a request: the broker may or may not have carried it out."""


class ClosedError(ClientError):
    """The client was closed, or was created in the parent process before a fork."""


class PositionLost(ClientError):
    """A partition has no valid position, and the application has to choose one. Each poll raises it until a seek
    (schedule 68); other partitions are read as before."""


class NoOffsetForPartition(PositionLost):
    """A partition has no position and `auto.offset.reset` is none."""


class OffsetOutOfRange(PositionLost):
    """A position outside the log. `requested`, `log_start` and `log_end` are offsets (-1: not known)."""

    def __init__(self, topic: str, partition: int, requested: int, log_start: int, log_end: int) -> None:
        self.topic = topic
        self.partition = partition
        self.requested = requested
        self.log_start = log_start
        self.log_end = log_end
        super().__init__(
            f"offset {requested} of {topic}-{partition} is out of range: the log holds {log_start} up to, not "
            f"including, {log_end}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.topic, self.partition, self.requested, self.log_start, self.log_end))


class CommitFailed(ClientError):
    """Offsets were not committed, because the group was rebalanced: another member may have the partitions now.

    `code` is the coordinator's error code. The next poll continues with the new assignment. The records after the last
    commit are delivered again, to this or another member.
    """

    def __init__(self, group: str, code: ErrorCode, why: str) -> None:
        self.group = group
        self.code = code
        self.why = why
        super().__init__(f"nothing was committed for group {group}: {why} ({code.name})")

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.group, self.code, self.why))


class MembershipLost(ClientError):
    """This consumer is no longer a member of its group; the next poll joins again."""


class LogTruncated(PositionLost):
    """The log was truncated: records before `position` were read, but those from `diverged_at` on no longer exist.

    Raised with ``auto.offset.reset=none``; any other policy moves the position to `diverged_at` (KIP-320).
    """

    def __init__(self, topic: str, partition: int, position: int, diverged_at: int) -> None:
        self.topic = topic
        self.partition = partition
        self.position = position
        self.diverged_at = diverged_at
        super().__init__(
            f"the log of {topic}-{partition} was cut: records were read up to {position}, the leader's log now "
            f"differs from {diverged_at} on; seek to where you want to go on"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.topic, self.partition, self.position, self.diverged_at))


class TopicReplaced(PositionLost):
    """A topic was deleted and created again under its name: its offsets belong to other records.

    `expected` and `found` are the ids of the old and the new topic. A consumer raises it with
    ``auto.offset.reset=none``; any other policy gives the position to continue from. A commit of an offset of the old
    topic raises it too.
    """

    def __init__(self, topic: str, expected: str, found: str) -> None:
        self.topic = topic
        self.expected = expected
        self.found = found
        super().__init__(f"topic {topic!r} with id {expected} is gone; {found or 'no topic'} has its name now")

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.topic, self.expected, self.found))


class DeserializationFailed(ClientError):
    """The deserializer failed on a record's key or value; its exception is the `__cause__`.

    The position stays at the record: `seek` to `offset + 1` to skip it. `field` is "key" or "value".
    """

    def __init__(self, topic: str, partition: int, offset: int, field: str, why: str) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.field = field
        self.why = why
        super().__init__(f"the {field} of {topic}-{partition} at offset {offset} cannot be deserialized: {why}")

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.topic, self.partition, self.offset, self.field, self.why))


class UnknownTopic(KafkaError):
    """The broker does not know the topic. The message names the command that creates it, unless the cluster does so."""

    retriable = False
    """False, because the client has already retried for the time in which a new topic reaches every broker."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic!r}; {how_to_make(topic)}")

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.topic,))


class AuthenticationFailed(KafkaError):
    """The brokers refuse the user or the mechanism of the login. The message never contains the password.

    Every call raises it until a connection succeeds. The client does not retry by itself; each call is a new attempt.
    """

    retriable = False


class ManyErrors(ClientError):
    """Errors of several requests at once. `results` holds what succeeded, `errors` what failed, both by name."""

    def __init__(self, results: Mapping[Any, Any], errors: Mapping[Any, Exception]) -> None:
        self.results = dict(results)
        self.errors = dict(errors)
        super().__init__("; ".join(f"{name}: {error}" for name, error in self.errors.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.results, self.errors))
