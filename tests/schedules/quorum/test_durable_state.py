"""Rule A1 under the loss of power: what a voter has said it must know when it is back."""

from __future__ import annotations

from uuid import UUID

from quorum_trial import Trial

from strandline.chaos.sim.ports import Ports
from strandline.controller.quorum.methods import METHODS
from strandline.controller.quorum.state_file import Remembered, StateFile
from strandline.controller.raft.messages import OffsetAndEpoch, ReplicaKey, VoteRequest, VoteResponse
from strandline.controller.raft.ready import ElectionState
from strandline.proto.ids import NodeId
from tests.stage import OneMachine

OLD = Remembered(ElectionState(4, voted_for=ReplicaKey(NodeId(2), UUID(int=2))), sequence=1)
NEW = Remembered(ElectionState(5, leader_id=NodeId(3)), sequence=2)
OPERATIONS = 12
"""More than one write of the file takes."""


def after_a_power_cut(seed: int, operations: int) -> tuple[bool, Remembered | None]:
    """Write OLD, then NEW with the power failing at so many disk operations; whether NEW was written, what is read."""
    machine = OneMachine(seed)
    written: list[Remembered] = []
    read: list[Remembered | None] = []

    async def write(ports: Ports) -> None:
        ports.disk.mkdir("/data")
        ports.disk.sync_dir("/")
        file = StateFile(ports.disk, "/data")
        file.write(OLD)
        machine.lose_power_at(operations)
        file.write(NEW)
        machine.lose_power_at(0)
        written.append(NEW)

    async def look(ports: Ports) -> None:
        read.append(StateFile(ports.disk, "/data").read())

    async def scenario(machine: OneMachine) -> None:
        await machine.live(write, 100)
        if written:
            machine.power_cut("n1")
        await machine.live(look, 100)

    machine.play(scenario)
    (state,) = read
    return bool(written), state


def test_a1_a_power_cut_at_any_instant_leaves_the_old_state_or_the_new() -> None:
    """Rule A1: temp file, sync, rename, sync of the directory; written means there for ever, and never is it a mix."""
    for seed in range(6):
        for operations in range(1, OPERATIONS):
            written, state = after_a_power_cut(seed, operations)
            assert state in ((NEW,) if written else (OLD, NEW)), (seed, operations)


def test_a1_a_vote_survives_the_loss_of_power() -> None:
    """Rule A1: whoever has been granted a vote of this node is asked again after its power failed at that very
    moment."""
    for seed in range(8):
        trial = Trial(seed=seed)

        async def test(trial: Trial) -> None:
            trial.start(1)
            await trial.until(lambda: trial.nodes[1].quorum is not None)
            assert await vote(trial, candidate=2), "nobody stood before it"
            trial.world.power_cut("n1")
            await trial.world.sleep_ms(20)
            trial.start(1)
            await trial.until(lambda: trial.nodes[1].quorum is not None)
            assert not await vote(trial, candidate=3), "it voted for 2 in this epoch"

        trial.play(test)


async def vote(trial: Trial, *, candidate: int) -> bool:
    """Ask node 1 for its vote in epoch 9; whether it grants it."""
    quorum = trial.nodes[1].quorum
    assert quorum is not None
    request = VoteRequest(
        "faults",
        ReplicaKey(NodeId(candidate), UUID(int=candidate)),
        9,
        ReplicaKey(NodeId(1), UUID(int=1)),
        OffsetAndEpoch(0, 0),
        False,
    )
    method = METHODS[type(request)]
    process = trial.world.process("n1")
    assert process is not None

    async def inside() -> bytes:
        return await quorum.rpc_handlers()[0][method.path](method.request.encode(request))

    task = process.context.copy().run(lambda: trial.world.loop.create_task(inside()))
    response = method.reply.decode(await task)
    assert isinstance(response, VoteResponse)
    return response.granted
