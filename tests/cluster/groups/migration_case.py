"""Consumers of the classic protocol as clients are, eager and cooperative, driven turn by turn against a shard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from consumer_protocol_case import ConsumerMember
from shard_case import Driver

from strandline.cluster.groups.commands import (
    CommitOffsets,
    Heartbeat,
    JoinAnswer,
    JoinGroup,
    LeaveGroup,
    Leaver,
    OffsetToCommit,
    SyncAnswer,
    SyncGroup,
)
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.consumer_protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

LOST = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)


class ClassicClient:
    """A member that reads topic t.

    Attributes:
        owned: the partitions it reads at this moment.
        errors: that it was told by whatever it asked.
        lost: how often it had to drop everything at once.
        stubborn: it gives nothing back; not as clients are.
    """

    def __init__(self, driver: Driver, name: str, *, cooperative: bool = False, instance_id: str | None = None) -> None:
        self.driver = driver
        self.name = name
        self.instance_id = instance_id
        self.cooperative = cooperative
        self.member_id = ""
        self.generation = -1
        self.owned: tuple[int, ...] = ()
        self.errors: list[ErrorCode] = []
        self.lost = 0
        self.stubborn = False
        self.joins = True
        self._asked: tuple[str, int] | None = None

    # What it asks

    def step(self) -> None:
        """One turn: look for an answer, else ask what comes next."""
        if self._asked is not None:
            kind, number = self._asked
            if number in self.driver.answers:
                self._asked = None
                self._take(kind, self.driver.answers[number])
        elif self.joins:
            self.ask_to_join()
        else:
            self._note("beat", self.driver.ask(self.beat_command()))

    def ask_to_join(self) -> None:
        if not self.cooperative and not self.stubborn:
            self.owned = ()
        self._note("join", self.driver.ask(self.join_command()))

    def join_command(self, **values: Any) -> JoinGroup:
        owned = tuple(TopicPartition("t", number) for number in self.owned)
        subscription = encode_subscription(Subscription(("t",), owned, self.generation))
        command = JoinGroup(
            group_id="g",
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.name,
            client_host="/h",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=(("cooperative-sticky" if self.cooperative else "range", subscription), ("common", subscription)),
        )
        return command._replace(**values)

    def beat_command(self) -> Heartbeat:
        return Heartbeat("g", self.generation, self.member_id, self.instance_id)

    def beat(self) -> ErrorCode:
        """A heartbeat beside the turns; whatever it is told, it does nothing."""
        return error_of(self.driver, self.driver.ask(self.beat_command()))

    def commit(self, offset: int, partition: int = 0) -> ErrorCode:
        """With a version of the request that knows no epochs."""
        offsets = (OffsetToCommit("t", partition, offset, -1, ""),)
        command = CommitOffsets("g", self.generation, self.member_id, self.instance_id, offsets, knows_epochs=False)
        return error_of(self.driver, self.driver.ask(command))

    def leave(self) -> None:
        self.driver.ask(LeaveGroup("g", (Leaver(self.member_id, self.instance_id),)))
        self.stop()

    def stop(self) -> None:
        """The process is gone."""
        self.owned, self.generation, self.member_id, self.joins, self._asked = (), -1, "", True, None

    def forget(self) -> None:
        """What it asked is not answered, and it asks anew."""
        if self._asked is not None:
            self.joins = self.joins or self._asked[0] != "beat"
            self._asked = None

    # What it is told

    def _note(self, kind: str, number: int) -> None:
        self._asked = (kind, number)
        if number in self.driver.answers:
            self._asked = None
            self._take(kind, self.driver.answers[number])

    def _take(self, kind: str, answer: object) -> None:
        error = answer.code if isinstance(answer, KafkaError) else getattr(answer, "error", answer)
        assert isinstance(error, ErrorCode)
        if error is not ErrorCode.NONE:
            self._take_error(error, answer)
        elif isinstance(answer, JoinAnswer):
            self.member_id, self.generation = answer.member_id, answer.generation
            command = SyncGroup(
                "g",
                self.generation,
                self.member_id,
                self.instance_id,
                answer.protocol_type,
                answer.protocol_name,
                _assign(answer) if answer.leader == self.member_id else (),
            )
            self._note("sync", self.driver.ask(command))
        elif isinstance(answer, SyncAnswer):
            assigned = tuple(sorted(number for _, number in decode_assignment(answer.assignment)))
            # A cooperative member that has given something back joins at once, to say so.
            self.joins = self.cooperative and not set(self.owned) <= set(assigned)
            if not self.stubborn:
                self.owned = assigned

    def _take_error(self, error: ErrorCode, answer: object) -> None:
        self.errors.append(error)
        self.joins = True
        if error is ErrorCode.MEMBER_ID_REQUIRED and isinstance(answer, JoinAnswer):
            self.member_id = answer.member_id
            self.ask_to_join()
        elif error in LOST or error is ErrorCode.FENCED_INSTANCE_ID:
            self.lost += bool(self.owned)
            self.owned, self.generation = (), -1
            if error is not ErrorCode.ILLEGAL_GENERATION:
                self.member_id = ""


def _assign(answer: JoinAnswer) -> tuple[tuple[str, bytes], ...]:
    """Six partitions, evenly; each keeps what it can, and nobody is given what another says it owns (KIP-429)."""
    has = {one.member_id: [p.partition for p in decode_subscription(one.subscription).owned] for one in answer.members}
    held = {number for numbers in has.values() for number in numbers}
    ids = sorted(has)
    quota = {one: 6 // len(ids) + (place < 6 % len(ids)) for place, one in enumerate(ids)}
    given = {one: has[one][: quota[one]] for one in ids}
    for number in range(6):
        needy = next((one for one in ids if len(given[one]) < quota[one]), None)
        if number not in held and needy is not None:
            given[needy].append(number)
    return tuple(
        (one, encode_assignment([TopicPartition("t", number) for number in numbers])) for one, numbers in given.items()
    )


def error_of(driver: Driver, number: int) -> ErrorCode:
    """NONE, or what an answer refuses with; it must have come at once."""
    answer = driver.answers[number]
    if isinstance(answer, KafkaError):
        return answer.code
    if isinstance(answer, list):
        answer = answer[0]
    error = getattr(answer, "error", answer)
    assert isinstance(error, ErrorCode)
    return error


Client = ClassicClient | ConsumerMember


def partitions_of(client: Client) -> tuple[int, ...]:
    return client.owned if isinstance(client, ClassicClient) else client.numbers()


def turn(*clients: Client, rounds: int = 8) -> None:
    """Every client does what comes next, several times; nobody ever reads what another reads."""
    for _ in range(rounds):
        for client in clients:
            if isinstance(client, ClassicClient):
                client.step()
            else:
                client.beat()
            check(clients)


def check(clients: Sequence[Client]) -> None:
    read = [number for client in clients for number in partitions_of(client)]
    assert len(read) == len(set(read)), {
        getattr(client, "name", "consumer"): partitions_of(client) for client in clients
    }


def shares(*clients: Client) -> list[int]:
    """How many partitions each has; together all of them."""
    assert sorted(number for client in clients for number in partitions_of(client)) == list(range(6))
    return [len(partitions_of(client)) for client in clients]


def classic_group(driver: Driver, count: int = 2, *, cooperative: bool = False) -> list[ClassicClient]:
    """A stable group of classic members."""
    clients = [ClassicClient(driver, f"c{number}", cooperative=cooperative) for number in range(count)]
    turn(*clients)
    assert sorted(shares(*clients)) == sorted(6 // count + (place < 6 % count) for place in range(count))
    return clients


def use(driver: Driver, *clients: Client) -> None:
    """Another coordinator is there for them."""
    for client in clients:
        client.driver = driver


def mixed(driver: Driver, *, cooperative: bool = False) -> tuple[ClassicClient, ClassicClient, ConsumerMember]:
    """Two classic members and one of the consumer protocol, two partitions each."""
    one, two = classic_group(driver, cooperative=cooperative)
    member = ConsumerMember(driver, "m")
    turn(one, two, member)
    return one, two, member
