"""Members of the consumer protocol, driven by hand against a shard."""

from __future__ import annotations

from typing import Any

from shard_case import Driver, topic_id_of

from strandline.cluster.groups.consumer_protocol.commands import (
    ConsumerAnswer,
    ConsumerGroupDescription,
    ConsumerHeartbeat,
    DescribeConsumerGroup,
)
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.kafka.consumer_group_records import Assignment


class ConsumerMember:
    """A client: it takes up what it is assigned, and gives back what it is not, unless it is told to hold on to it.

    Attributes:
        owned: partitions of topic t.
        stubborn: it gives nothing back.
    """

    def __init__(self, driver: Driver, member_id: str, topics: tuple[str, ...] = ("t",), **values: Any) -> None:
        self.driver = driver
        self.member_id = member_id
        self.epoch = 0
        self.owned: Assignment = {}
        self.stubborn = False
        self.topics = topics
        self.values: dict[str, Any] = {"group_id": "g", "client_id": "c", "client_host": "/h", **values}

    def command(self, **values: Any) -> ConsumerHeartbeat:
        """A heartbeat; the first one is whole."""
        joins = {"rebalance_timeout_ms": 60_000, "topics": self.topics} if self.epoch == 0 else {}
        return ConsumerHeartbeat(
            **{
                "member_id": self.member_id,
                "epoch": self.epoch,
                "owned": self.owned,
                **joins,
                **self.values,
                **values,
            }
        )

    def beat(self, **values: Any) -> ConsumerAnswer:
        """Raises KafkaError."""
        answer: ConsumerAnswer = self.driver.get(self.command(**values))
        self.take(answer)
        return answer

    def take(self, answer: ConsumerAnswer) -> None:
        self.epoch = answer.epoch
        if answer.assigned is not None and not self.stubborn:
            self.owned = answer.assigned

    def refused(self, **values: Any) -> ErrorCode:
        """The error of a heartbeat that must not succeed."""
        try:
            answer = self.driver.get(self.command(**values))
        except KafkaError as error:
            return error.code
        raise AssertionError(answer)

    def numbers(self, topic: str = "t") -> tuple[int, ...]:
        """What it owns of a topic."""
        return self.owned.get(topic_id_of(topic), ())

    def leave(self, epoch: int = -1) -> ConsumerAnswer:
        answer: ConsumerAnswer = self.driver.get(self.command(epoch=epoch))
        self.epoch, self.owned = 0, {}
        return answer


def members(driver: Driver, count: int, **values: Any) -> list[ConsumerMember]:
    return [ConsumerMember(driver, f"m{number}", **values) for number in range(count)]


def settle(*clients: ConsumerMember, rounds: int = 6) -> None:
    """Heartbeats until nothing is left to do."""
    for _ in range(rounds):
        for client in clients:
            client.beat()


def described(driver: Driver, group_id: str = "g") -> ConsumerGroupDescription:
    found: ConsumerGroupDescription = driver.get(DescribeConsumerGroup(group_id))
    return found
