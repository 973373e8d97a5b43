"""Any order of commands, failovers and refused writes: what clients were told holds, whatever happens.

The model knows clients and what they were told, and nothing of the machine: who has which producer, which partitions
its transaction has, and how it ended. The log is held to the same: legal steps, epochs that rise, one decision each.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from transaction_case import Driver, compact, values_of

from strandline.cluster.transactions.commands import (
    AddPartitions,
    EndTransaction,
    InitProducer,
    MarkerOrder,
    MarkersWritten,
    Producer,
    VerifyPartitions,
)
from strandline.cluster.transactions.shard import EPOCH_MAX
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.transaction_records import TransactionState, TransactionValue, transaction_record

IDS = ("a", "b")
CLIENTS = 4
"""Three of the first id, one of the other."""

EMPTY, OPEN = TransactionState.EMPTY, TransactionState.ONGOING
PC, PA = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
CC, CA = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT
MAY_FOLLOW = {
    EMPTY: (EMPTY, CC, CA),
    OPEN: (OPEN, EMPTY, CC, CA),
    PC: (OPEN,),
    PA: (OPEN, EMPTY, CC, CA),
    CC: (PC,),
    CA: (PA,),
}
"""Which states a state may follow in the log; a first record, or one behind a tombstone, is Empty."""

KINDS = (
    *("init", "init", "again", *("add",) * 6, "verify", "verify", *("end",) * 5, "end-again"),
    *(*("markers",) * 5, "late", "late", "time", "hold", "hold", "lose", "refuse", "failover", "crash"),
)
SEEDS, STEPS = 40, 120


@dataclass
class Client:
    """Attributes:
    has: the producer that it was given.
    open: partitions that it was told are in its transaction, which it has not asked to end.
    fenced: another client of its id was given a producer since.
    """

    number: int
    name: str
    version: int
    has: Producer | None = None
    open: set[TopicPartition] = field(default_factory=set)
    fenced: bool = False


class World:
    """Clients, a coordinator, and what was asked of it."""

    def __init__(self, epoch: int, first_version: int) -> None:
        log = []
        for number, name in enumerate(IDS):
            value = TransactionValue(number + 1, -1, -1, epoch, 60_000, EMPTY, frozenset(), 0, -1)
            log.append(transaction_record(name, value))
        self.driver = Driver(log if epoch else [], expiration_ms=400_000, expiry_interval_ms=50_000)
        self.clients = [Client(n, IDS[n == 3], first_version if n < 2 else 2) for n in range(CLIENTS)]
        self.waiting: dict[int, tuple[Client, Any, Producer, frozenset[TopicPartition]]] = {}
        self.given: dict[Producer, int] = {}
        """Each producer that was given, and to which client."""
        self.decided: dict[tuple[str, int], MarkerOrder] = {}
        """By the place of its record: how a transaction was ordered to end."""
        self.old_orders: list[MarkerOrder] = []
        self.trouble = 0
        """So many steps more writes are held or refused."""

    def ask(self, client: Client, command: Any) -> None:
        had = Producer(command.producer_id, command.producer_epoch)
        added = frozenset(client.open)
        if isinstance(command, EndTransaction):
            client.open.clear()  # until it knows what became of it, it knows of nothing that is open
        self.waiting[self.driver.ask(command)] = (client, command, had, added)
        self.hear()

    def hear(self) -> None:
        """Take in what has been answered."""
        for number, (client, command, had, added) in list(self.waiting.items()):
            if number in self.driver.answers:
                del self.waiting[number]
                answer = self.driver.answers[number]
                if not isinstance(answer, KafkaError):
                    self.told(client, command, had, added, answer)
        for order in self.driver.orders:
            self.ordered(order)

    def told(self, client: Client, command: Any, had: Producer, added: frozenset[TopicPartition], answer: Any) -> None:
        if isinstance(command, InitProducer):
            self.told_producer(client, None if had.producer_id == -1 else had, answer)
        elif isinstance(command, AddPartitions):
            assert not (client.fenced and client.has == had), "who was fenced adds nothing"
            if client.has == had:
                client.open |= command.partitions
        elif isinstance(command, VerifyPartitions):
            held = {one for one, code in answer.items() if code is ErrorCode.NONE}
            assert held <= {TopicPartition("t", n) for n in range(4)}
            if client.has == had and not client.fenced and not self.asks(client):
                assert client.open & command.partitions <= held, "what was added is in the transaction"
        elif isinstance(command, EndTransaction):
            self.told_end(client, command, had, added, answer)

    def asks(self, client: Client) -> bool:
        """Whether it has asked for something that it has no answer to."""
        return any(one is client for one, *_ in self.waiting.values())

    def told_producer(self, client: Client, named: Producer | None, answer: Producer) -> None:
        assert 0 <= answer.epoch <= EPOCH_MAX
        if named is None:
            assert answer not in self.given, "given to somebody before"
        else:
            assert self.given.get(answer, client.number) == client.number
        self.given[answer] = client.number
        for other in self.clients:
            if other is not client and other.name == client.name:
                other.fenced = True
        client.has, client.open, client.fenced = answer, set(), False

    def told_end(
        self, client: Client, command: EndTransaction, had: Producer, added: frozenset[TopicPartition], answer: Producer
    ) -> None:
        if client.has != had:
            return  # a late answer to a request of before
        if command.version == 2:
            assert answer != had
            assert self.given.get(answer, client.number) == client.number
            self.given[answer] = client.number
        else:
            assert answer == had
        assert not client.fenced, "who was fenced ends nothing"
        wanted = PC if command.commit else PA
        records = [
            value
            for name, value in values_of(self.driver.log[: self.driver.committed])
            if name == client.name and value is not None and value.state is wanted and producer_of(value) == had
        ]
        assert records, "it was told of a decision that is not committed"
        assert added <= records[-1].partitions, "a partition that was added is not ended with the others"
        client.has, client.open = answer, set()

    def ordered(self, order: MarkerOrder) -> None:
        """A marker is ordered of what is committed, and always the same one."""
        log = self.driver.log
        places = [n for n, (name, _) in enumerate(values_of(log)) if name == order.transactional_id]
        place = places[-1]
        [(_, value)] = values_of(log[place : place + 1])
        assert value is not None
        if not value.state.is_prepared:
            return  # its completion is under way
        assert place < self.driver.committed, "ordered before it is committed"
        known = self.decided.setdefault((order.transactional_id, place), order)
        assert (order.partitions, order.transaction_version) == (known.partitions, known.transaction_version)
        assert order.marker[:3] == known.marker[:3], "decided twice"
        assert order.marker.commit == (value.state is PC)
        assert order.partitions == value.partitions


def producer_of(value: TransactionValue) -> Producer:
    """The producer that ended a transaction, by the record of its decision."""
    if value.client_version == 2:
        return Producer(value.producer_id, value.producer_epoch - 1)
    return Producer(value.producer_id, value.producer_epoch)


def step(world: World, kind: str, who: int, how: int) -> None:
    """One thing that a client, or the world, does."""
    client, driver = world.clients[who], world.driver
    has = client.has or Producer(-1, -1)
    partitions = frozenset({TopicPartition("t", how), TopicPartition("t", (who + how) % 4)})
    timeout_ms = 60_000
    if kind == "init":
        world.ask(client, InitProducer(client.name, timeout_ms))
    elif kind == "again" and client.has is not None:
        world.ask(client, InitProducer(client.name, timeout_ms, *has))
    elif kind == "add":
        world.ask(client, AddPartitions(client.name, *has, partitions))
    elif kind == "verify":
        world.ask(client, VerifyPartitions(client.name, *has, partitions))
    elif kind == "end":
        world.ask(client, EndTransaction(client.name, *has, how % 2 == 0, client.version))
    elif kind == "end-again":
        for _ in range(2):
            world.ask(client, EndTransaction(client.name, *has, how % 2 == 0, client.version))
    elif kind == "markers":
        world.old_orders += driver.orders[:1]
        if driver.orders:
            order = driver.orders.pop(0)
            driver.tell(MarkersWritten(order))
    elif kind == "late" and world.old_orders:
        driver.tell(MarkersWritten(world.old_orders[how % len(world.old_orders)]))
    elif kind == "time":
        driver.pass_ms((100, 15_000, 80_000, 500_000)[how])
    elif kind == "hold":
        driver.hold, world.trouble = True, how + 2
    elif kind == "lose":
        driver.lose_held()
    elif kind == "refuse":
        driver.refuse, world.trouble = ErrorCode.NOT_ENOUGH_REPLICAS, how + 1
    elif kind in ("failover", "crash"):
        kept = None if kind == "failover" else driver.committed + how
        world.old_orders += driver.orders
        world.waiting.clear()
        world.driver = driver.failover(kept)
        known = {key: order for key, order in world.decided.items() if key[1] < len(world.driver.log)}
        world.decided = known
    world.hear()
    world.trouble -= 1
    if world.trouble == 0:
        world.driver.hold, world.driver.refuse = False, None
        world.driver.commit_held()
        world.hear()


def check_log(driver: Driver) -> None:
    """Each id goes from state to state as it may; its epochs rise; what is decided is what was open."""
    last: dict[str, TransactionValue] = {}
    for name, value in values_of(driver.log):
        if value is None:
            assert last.pop(name).state.is_over
            continue
        before = last.get(name)
        if before is None:
            assert value.state is EMPTY
        else:
            renewed = before.state is CA and value.state is CA and value.producer_id != before.producer_id
            assert renewed or before.state in MAY_FOLLOW[value.state], (before.state, value.state)
            if value.producer_id == before.producer_id:
                assert value.producer_epoch >= before.producer_epoch
            else:
                assert (value.producer_epoch, value.previous_id) == (0, before.producer_id)
            if value.state.is_prepared:
                assert value.partitions == (before.partitions if before.state is OPEN else frozenset())
            if value.state is OPEN and before.state is OPEN:
                assert before.partitions < value.partitions
        assert value.state in (OPEN, PC, PA) or not value.partitions
        assert 0 <= value.producer_epoch <= EPOCH_MAX + 1
        last[name] = value
    assert driver.shard.transactions == last, "memory is what the log says"


@pytest.mark.parametrize("part", range(2))
def test_whatever_clients_do(part: int) -> None:
    """No step breaks what somebody was told. When the faults end every transaction ends, and everybody can go on."""
    for seed in range(part * SEEDS, (part + 1) * SEEDS):
        rng = random.Random(seed)
        world = World(rng.choice((0, EPOCH_MAX - 2)), rng.choice((1, 2)))
        steps = [(rng.choice(KINDS), rng.randrange(CLIENTS), rng.randrange(4)) for _ in range(STEPS)]
        try:
            for one in steps:
                step(world, *one)
                check_log(world.driver)
            go_on(world)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def go_on(world: World) -> None:
    """The faults end."""
    driver = world.driver
    driver.refuse, driver.hold = None, False
    driver.commit_held()
    driver.pass_ms(1_000)
    driver.write_markers()
    driver.pass_ms(80_000)
    driver.write_markers()
    world.hear()
    assert not world.waiting, "every question has its answer"
    check_log(driver)
    assert all(value.state.is_over for value in driver.shard.transactions.values()), "nothing is open for ever"
    assert driver.failover().shard.transactions == driver.shard.transactions
    assert Driver(compact(driver.log)).shard.transactions == driver.shard.transactions
    for name in IDS:
        producer = driver.init(transactional_id=name)
        assert producer not in world.given
        assert driver.code(AddPartitions(name, *producer, frozenset({TopicPartition("t", 0)}))) is ErrorCode.NONE
