"""One seed of the cluster under faults: production nodes, clients, a nemesis, and everything that must hold.

Phases: the cluster comes up and gets its topics; faults and traffic, with the invariants checked as events run; then
everything is healed and progress is demanded by a deadline; then a fresh client reads everything from the beginning,
and histories and replicas are judged.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

from strandline.chaos.checkers.anomalies import judge, realtime_lag_ms
from strandline.chaos.checkers.batches import StoredBatch
from strandline.chaos.checkers.copies import ConsistentRead
from strandline.chaos.checkers.history import History
from strandline.chaos.checkers.invariant import InvariantViolated
from strandline.chaos.checkers.markers import TransactionChecks
from strandline.chaos.checkers.replicas import Known, check_producers, compare_replicas
from strandline.chaos.checkers.rights import LATE_PROMPT_MS, check_not_denied
from strandline.chaos.cluster import SimCluster
from strandline.chaos.drains import Drains
from strandline.chaos.logs import LogCapture
from strandline.chaos.moves import Moves, Reassignments
from strandline.chaos.nemesis.kinds import FAULTS
from strandline.chaos.nemesis.minority import cripple
from strandline.chaos.nemesis.nemesis import Nemesis
from strandline.chaos.nemesis.operator import LevelChanges, Operator
from strandline.chaos.nemesis.voters import VoterChanges
from strandline.chaos.preload import preload
from strandline.chaos.restored import QUIET_MS, Restoration, Restorer
from strandline.chaos.scenario_options import ScenarioOptions
from strandline.chaos.secured.options import PLAIN_CLIENTS, USERS
from strandline.chaos.secured.secured import Secured
from strandline.chaos.services.options import TOMBSTONES_MS
from strandline.chaos.services.services import Services
from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.seeds import split
from strandline.chaos.sim.threads import threads_of_clients
from strandline.chaos.sim.world import World
from strandline.chaos.tiered import GRACE_MS, LEAVES_DISKS_MS, segments_to_read, tier_read_ms
from strandline.chaos.transacting.options import ACCOUNTS, STATEMENTS, TransactionOptions, markers_remembered
from strandline.chaos.transacting.transacting import Transacting
from strandline.chaos.users.users import Users
from strandline.chaos.workload import Workload
from strandline.cluster.transactions.commands import EPOCH_VERSION
from strandline.controller.metadata.features import KRAFT_FEATURE, TRANSACTION_FEATURE
from strandline.proto import marks

CLIENT = "client"
SERVICES = "services"
SECURED = "secured"
RESTORER = "restorer"
NEWCOMERS = "newcomers"
USERS_MACHINE = "users"
TRANSACTING = "transacting"
OPERATOR = "operator"

READY_MS = 30_000
PROGRESS_MS = 60_000
"""Milliseconds of virtual time after healing for: every node unfenced, acks again, every replica in sync, everything
read."""

_ACKS = 10
"""Acks under acks=all that, with one in every partition, show that writing works."""

LASTING_SHARE = 0.25
"""Share of the seeds in which, once all is whole, one machine is broken and stays so, and the others must
acknowledge without it."""


class ScenarioRun:
    """One seed."""

    def __init__(self, seed: int, options: ScenarioOptions | None = None) -> None:
        preload()
        marks.reset()
        self.seed = seed
        self.options = options or ScenarioOptions.draw(seed)
        self.world = World(seed, self.options.world)
        asking = self.options.secured
        users, login = (USERS, PLAIN_CLIENTS) if asking is not None else ((), {})
        tiered, transactions = self.options.tiered, self.options.transactions
        self.cluster = SimCluster(
            self.world,
            self.options.node,
            split=self.options.split_layout,
            users=users,
            directories=self.options.directories,
            store=None if tiered is None else tiered.store,
            older=self.options.older,
            features=() if transactions is None else (f"{TRANSACTION_FEATURE}={transactions.version}",),
            transactions=None if transactions is None else TransactionChecks(frozenset((ACCOUNTS, STATEMENTS))),
            voters=self.options.voters,
        )
        self.world.add_machine(CLIENT)
        self.history = History()
        bootstrap = self.cluster.bootstrap
        self.workload = Workload(bootstrap, self.options.workload, self.history, self._now_ms, login=login)
        self.services: Services | None = None
        if self.options.services is not None:
            self.world.add_machine(SERVICES)
            self.services = services = Services(bootstrap, self.options.services, self.history, self._now_ms, login)
            self.cluster.tiers.deletable = lambda: services.deletable
        self.users: Users | None = None
        if self.options.users is not None:
            self.world.add_machine(USERS_MACHINE)
            self.users = Users(bootstrap, self.options.users, self.history, self._now_ms, login)
            self.users.shared.ledger.deposed = lambda where: self.cluster.has_deposed_leader(str(where))
        self.transacting: Transacting | None = None
        if transactions is not None and self.cluster.transactions is not None:
            self.world.add_machine(TRANSACTING)
            self.transacting = Transacting(
                bootstrap, transactions, self.history, self._now_ms, login, checks=self.cluster.transactions
            )
        self.secured: Secured | None = None
        if asking is not None:
            self.world.add_machine(SECURED)
            self.secured = Secured(bootstrap, asking, self._now_ms)
        self.restorer = Restorer(bootstrap, self.cluster.store, self.options.workload)
        self.restoration: Restoration | None = None
        if self.options.restored is not None:
            self.world.add_machine(RESTORER)
            self.world.add_machine(NEWCOMERS)
        self.nemesis = Nemesis(
            self.world,
            split(seed, "faults"),
            self.cluster.names,
            self.cluster.start,
            self.options.faults,
            stop=self.cluster.stop,
            leader=lambda: self.cluster.leader(split(seed, "victims", self.world.loop.now_us)),
            controller=self.cluster.controller,
            on_fault=self.cluster.inspect,
            store=self.cluster.store,
        )
        self.cluster.may_fall = self.nemesis.excused
        self.cluster.without_vote = self.nemesis.without_vote
        self.cluster.forced = self.nemesis.forced
        self.operator = Operator(
            self.world,
            self.cluster.quorums,
            self.cluster.controllers,
            self.nemesis.note,
            self.nemesis.victim,
            self.nemesis.force_vote,
            self.cluster.leaderless,
            self.cluster.elect_uncleanly,
            self.cluster.offline,
            self.nemesis.start_again,
        )
        self.voters = self._make_voter_changes()
        self.drains = self._make_drains()
        self.reassignments: Reassignments | None = None
        self._reads = ConsistentRead()
        self._logs = LogCapture(self._now_ms)
        self._turns = 0
        self.world.loop.observe = self._observe
        self.world.loop.observe_every = 16

    def _make_drains(self) -> Drains | None:
        if not self.options.drains:
            return None
        self.world.add_machine(OPERATOR)
        return Drains(self.cluster, split(self.seed, "drains"), self.nemesis.note)

    def _make_voter_changes(self) -> VoterChanges | None:
        """The part that changes the voters, and says which directories may be destroyed meanwhile; None if voters are
        fixed."""
        options, cluster = self.options.voters, self.cluster
        if options is None:
            return None
        changes = VoterChanges(
            self.world,
            split(self.seed, "voter changes"),
            options.gap_ms,
            options.auto_join,
            cluster.controllers,
            self.nemesis.victim,
            cluster.quorums,
            cluster.quorum_checks.voters,
            self.nemesis.note,
        )
        self.operator.replaces = True
        self.nemesis.may_destroy = changes.may_destroy
        cluster.on_views = changes.see
        return changes

    def _now_ms(self) -> float:
        return self.world.now_ms

    def _observe(self) -> None:
        image = None if self.restoration is None else self.cluster.newest_image()
        if self.restoration is not None and image is not None and self.restoration.settle(image):
            self._reads = ConsistentRead()
        self.cluster.observe()
        if self.secured is not None:
            self.secured.check()
        if self.users is not None:
            self.users.check()
        if self.transacting is not None:
            self.transacting.check()
        if self.drains is not None:
            self.drains.check()
        self._reads.check(self.history.polls)
        self._turns += 1
        if self._turns % 200 == 0:
            self.cluster.inspect()
            self._inspect_rights()

    def _inspect_rights(self) -> None:
        """Check the rights that are committed, and those of clients that stay. Raises InvariantViolated."""
        image = self.cluster.newest_image()
        if self.secured is not None and image is not None:
            self.secured.check_image("the newest", image)
            check_not_denied(self.workload.errors)
            check_not_denied({} if self.services is None else self.services.shared.errors)

    def expanded(self) -> dict[str, Any]:
        return asdict(self.options)

    def timeline(self) -> list[tuple[int, str]]:
        return sorted([*self.nemesis.events, *self._logs.lines], key=lambda line: line[0])

    def execute(self) -> dict[str, Any]:
        """Run it.

        Raises:
            InvariantViolated
        """
        transactions = self.options.transactions
        with (
            threads_of_clients() if self.users is not None or self.drains is not None else nullcontext(),
            markers_remembered(transactions.remembered) if transactions is not None else nullcontext(),
        ):
            try:
                self.world.run(self._scenario())
            except InvariantViolated as violated:
                if violated.name == "Progress":
                    self._check_unhandled()
                raise
        return self._figures()

    async def _scenario(self) -> None:
        for name in self.cluster.names:
            self.cluster.start(name)
        operating = self.world.loop.create_task(self.operator.work())
        await self.cluster.wait_ready(READY_MS)
        if self.secured is not None:
            await self._prepare_secured(self.secured)
        self._start_clients()
        await self.cluster.wait_for("the topics exist", READY_MS, lambda: self.workload.topics_exist)
        self.nemesis.note("topics exist: faults begin")
        if self.options.kill_clients:
            self.world.loop.call_later(self.options.duration_ms / 2000, self._replace_clients)
        if self.options.services is not None and self.options.services.kill:
            self.world.loop.call_later(self.options.duration_ms / 1500, self._replace_services)
        if self.users is not None:
            self.nemesis.note(self.users.describe())
            if self.options.users is not None and self.options.users.kill:
                self.world.loop.call_later(self.options.duration_ms / 1800, self._replace_users)
        if self.transacting is not None:
            self.nemesis.note(self.transacting.describe())
            if self.options.transactions is not None:
                self._disturb_transactions(self.options.transactions)
        moves = Moves(self.world, self.cluster, split(self.seed, "moves"), self.nemesis.note)
        moving = self.world.loop.create_task(moves.work()) if self.options.directories > 1 else None
        reassigning = self._reassign()
        changing = self._change_levels()
        voting = self._change_voters()
        if self.drains is not None:
            self.world.spawn(OPERATOR, self.drains.main)
        await self._strike()
        for work in (moving, reassigning, voting):
            if work is not None:
                work.cancel()
        self.cluster.inspect()
        self.nemesis.heal()
        if self.services is not None:
            self.services.calm = True
        if self.users is not None:
            self.users.be_calm()
        if self.transacting is not None:
            self.transacting.over = True
        if self.secured is not None:
            self.secured.admin.calm = True
        await self._recover()
        if changing is not None:
            changing.cancel()
        await self._finish()
        operating.cancel()
        self._judge()

    def _reassign(self) -> asyncio.Task[None] | None:
        fewest = self.options.fewest_replicas
        if fewest is None:
            return None
        rng = split(self.seed, "reassignments")
        self.reassignments = Reassignments(self.world, self.cluster, rng, self.nemesis.note, fewest)
        return self.world.loop.create_task(self.reassignments.work())

    def _change_voters(self) -> asyncio.Task[None] | None:
        options = self.options.voters
        if options is None or self.voters is None:
            return None
        if not self.cluster.voters_come_and_go:
            self.world.loop.call_later(options.raised_after_ms / 1000, self._raise, KRAFT_FEATURE, 1)
        return self.world.loop.create_task(self.voters.work())

    def _change_levels(self) -> asyncio.Task[None] | None:
        after_ms, cluster = self.options.rolled_after_ms, self.cluster
        if after_ms is None or self.options.restored is not None:  # the other cluster has no build before
            return None
        changes = LevelChanges(
            self.world,
            split(self.seed, "changes of levels"),
            after_ms,
            cluster.is_older,
            cluster.names,
            cluster.roll,
            self.nemesis.start_again,
            cluster.level,
            cluster.ask_for_level,
            self.nemesis.note,
        )
        return self.world.loop.create_task(changes.work())

    async def _strike(self) -> None:
        """Faults; in some seeds the cluster is lost in their middle."""
        restored, duration_ms = self.options.restored, self.options.duration_ms
        if restored is None:
            await self.nemesis.run(duration_ms, FAULTS)
            return
        await self.nemesis.run(restored.after * duration_ms, FAULTS)
        self.cluster.inspect()
        lost = self.cluster.newest_image()
        self.nemesis.note("the whole cluster is lost, with every disk")
        self.cluster.lose()
        self.nemesis.heal()
        await self.world.sleep_ms(QUIET_MS)
        if lost is not None:
            self.restoration = Restoration(self.history, lost)
        self.workload.era += 1
        self.nemesis.note("another cluster begins under its addresses, and restores its topics")
        self.cluster.begin_again()
        self.world.spawn(RESTORER, self._restore)
        if restored.newcomers:
            self.world.spawn(NEWCOMERS, self.workload.main)
        self.nemesis.go_on()
        await self.nemesis.run((1 - restored.after) * duration_ms, FAULTS)

    async def _restore(self, ports: Ports) -> None:
        process = self.world.process(RESTORER)
        assert process is not None
        await self.restorer.main(ports, process)

    async def _prepare_secured(self, secured: Secured) -> None:
        self.world.spawn(SECURED, secured.main)

        def known() -> bool:
            return all(secured.is_known_to(live.node.publisher.image) for live in self.cluster.nodes())

        await self.cluster.wait_for("every node knows the users and their rights", READY_MS, known)
        self.nemesis.note("brokers ask: clients log in by SCRAM, and have rights and quotas")
        await self.world.sleep_ms(LATE_PROMPT_MS)  # then all of it may be changed

    def _start_clients(self) -> None:
        self.world.spawn(CLIENT, self.workload.main)
        if self.services is not None and self.world.process(SERVICES) is None:
            self.world.spawn(SERVICES, self.services.main)
        if self.users is not None and self.world.process(USERS_MACHINE) is None:
            self.world.spawn(USERS_MACHINE, self.users.main)
        if self.transacting is not None and self.world.process(TRANSACTING) is None:
            self.world.spawn(TRANSACTING, self.transacting.main)

    def _disturb_transactions(self, options: TransactionOptions) -> None:
        """Disturb the transactional clients once, in the middle of the faults."""
        if options.kill:
            self.world.loop.call_later(self.options.duration_ms / 1700, self._replace_transacting)
        if options.raised_after_ms is not None:
            self.world.loop.call_later(options.raised_after_ms / 1000, self._raise, TRANSACTION_FEATURE, EPOCH_VERSION)

    def _raise(self, feature: str, level: int) -> None:
        """Request a feature level until it is set, as an operator does when a node is away."""
        self.nemesis.note(f"{feature} {level} is asked for")
        self.cluster.ask_for_level(level, feature)
        image = self.cluster.newest_image()
        if image is None or image.finalized.get(feature, 0) < level:
            self.world.loop.call_later(1.0, self._raise, feature, level)

    def _replace_transacting(self) -> None:
        assert self.transacting is not None
        self.nemesis.note("kill the transactional clients, start others")
        self.world.kill(TRANSACTING)
        self.world.spawn(TRANSACTING, self.transacting.main)

    def _replace_users(self) -> None:
        assert self.users is not None
        self.nemesis.note("kill the users, start others")
        self.world.kill(USERS_MACHINE)
        self.world.spawn(USERS_MACHINE, self.users.main)

    def _replace_services(self) -> None:
        assert self.services is not None
        self.nemesis.note("kill the services, start others")
        self.world.kill(SERVICES)
        self.world.spawn(SERVICES, self.services.main)

    def _replace_clients(self) -> None:
        """Clients die too: what they had sent becomes indeterminate."""
        self.nemesis.note("kill the clients, start others")
        self.world.kill(CLIENT)
        self._start_clients()

    async def _recover(self) -> None:
        """Liveness: with everything healed the cluster gets whole again, and acknowledges."""
        await self.cluster.wait_ready(PROGRESS_MS)
        self.nemesis.note("every node is unfenced")
        if self.drains is not None:
            drains = self.drains
            drains.calm = True
            await self.cluster.wait_for("a broker is drained, and back in use", 2 * PROGRESS_MS, lambda: drains.done)
        if self.reassignments is not None:
            spread = self.reassignments.spread
            await self.cluster.wait_for("every move has ended, and everything is everywhere", PROGRESS_MS, spread)
            self.nemesis.note("every move has ended")
        if self.options.restored is not None:
            await self.cluster.wait_for("the topics are restored", PROGRESS_MS, lambda: self.restorer.done)
            self.nemesis.note("the topics are restored")
        await self._acks_again()
        await self.cluster.wait_in_sync(PROGRESS_MS)
        self.nemesis.note("every replica is in sync")
        if self.voters is not None:
            await self.cluster.wait_for("voters may come and go", PROGRESS_MS, self.cluster.is_dynamic)
            self.operator.replaces = False
        await self.cluster.wait_for("every controller has its vote", PROGRESS_MS, self.cluster.all_vote)
        self.operator.victim = ""
        rng = split(self.seed, "minority")
        # At min.insync.replicas 1 a leader that hears nobody is soon alone in its ISR, and nobody may take its place.
        several = self.options.workload.topic_configs["min.insync.replicas"] != "1"
        if rng.random() < LASTING_SHARE and several:
            await self._do_without_one(rng)

    async def _acks_again(self) -> None:
        """Wait for acks in every partition under acks=all: what is answered by one broker, or by none, proves
        nothing."""
        workload = self.workload
        before = workload.acked.copy()

        def came() -> bool:
            more = workload.acked - before
            return more.total() >= _ACKS and all(where in more for where in workload.partitions)

        await self.cluster.wait_for("acks come again in every partition", PROGRESS_MS, came)
        self.nemesis.note("acks come again")

    async def _do_without_one(self, rng: random.Random) -> None:
        """Check that the others do without a minority that stays broken."""
        acks_synced = self.options.node.get("flush.policy") != "replicate"
        mend = cripple(self.nemesis, self.cluster.names, rng, acks_synced=acks_synced)
        await self.world.sleep_ms(1_000)
        await self._acks_again()
        mend()
        await self.cluster.wait_ready(PROGRESS_MS)
        await self.cluster.wait_in_sync(PROGRESS_MS)
        self.nemesis.note("every replica is in sync again")

    async def _finish(self) -> None:
        self.workload.sending = False
        restored = self.options.restored
        lanes = len(self.options.workload.lanes) * (2 if restored is not None and restored.newcomers else 1)
        await self.cluster.wait_for("the producers have flushed", 2 * PROGRESS_MS, lambda: self.workload.idle >= lanes)
        self.world.kill(CLIENT)
        if restored is not None:
            self.world.kill(NEWCOMERS)
        if self.options.tiered is not None:
            await self.world.sleep_ms(LEAVES_DISKS_MS)
        process = self.world.spawn(CLIENT, self.workload.read_everything)
        assert process.main is not None
        main = process.main
        await self.cluster.wait_for("everything is read", self._reading_ms(), main.done)
        main.result()
        if self.services is not None:
            await self._finish_services(self.services)
        if self.users is not None:
            await self._finish_users(self.users)
        if self.transacting is not None:
            await self._finish_transactions(self.transacting)
        if self.secured is not None:
            await self._finish_secured(self.secured)
        await self.cluster.wait_in_sync(PROGRESS_MS)
        await self.world.sleep_ms(2_000)  # followers hear of the last high watermark
        if self.options.tiered is not None:
            await self._finish_tiers()
        self.cluster.inspect()

    def _reading_ms(self) -> float:
        """Milliseconds of virtual time for a client to read all topics, as they are now."""
        if self.options.tiered is None:
            return PROGRESS_MS
        leaders = [
            one for live in self.cluster.nodes() for one in self.cluster.replicas(live) if one.leader is not None
        ]
        segments = sum(segments_to_read(one) for one in leaders if one.state.log_config.remote_storage)
        return PROGRESS_MS + tier_read_ms(self.options.tiered.store, segments)

    async def _finish_services(self, services: Services) -> None:
        """Every acknowledged record of a topic that lives is handled; then fresh clients look at everything."""
        deadline_ms = self.world.now_ms + PROGRESS_MS
        while not services.settled:
            if self.world.now_ms > deadline_ms:
                facts = {"open": services.open[:10], **services.figures()}
                raise InvariantViolated("HandledAtLeastOnce", "records are not handled and committed in time", **facts)
            await self.world.sleep_ms(50)
        self.world.kill(SERVICES)
        if services.ages:
            aging = self.world.spawn(SERVICES, services.let_tombstones_go).main
            assert aging is not None
            await self.cluster.wait_for("tombstones have gone", TOMBSTONES_MS + 2 * PROGRESS_MS, aging.done)
            aging.result()
            self.world.kill(SERVICES)
        main = self.world.spawn(SERVICES, services.look_at_the_end).main
        assert main is not None
        await self.cluster.wait_for("the services' topics are read", self._reading_ms(), main.done)
        main.result()

    async def _finish_users(self, users: Users) -> None:
        """Wait until all consumers have read all records, and the group has committed them; then let a fresh client
        check everything."""
        deadline_ms = self.world.now_ms + PROGRESS_MS
        while not users.settled:
            if self.world.now_ms > deadline_ms:
                raise InvariantViolated("Progress", "users do not come to the end", open=users.open[:10])
            await self.world.sleep_ms(50)
        self.world.kill(USERS_MACHINE)
        main = self.world.spawn(USERS_MACHINE, users.look_at_the_end).main
        assert main is not None
        await self.cluster.wait_for("the users' topics are read", self._reading_ms(), main.done)
        main.result()

    async def _finish_transactions(self, transacting: Transacting) -> None:
        """Wait until all is written and passed through, and the time of every transaction is over; then a fresh reader
        of committed data looks at everything."""
        options = self.options.transactions
        assert options is not None
        deadline_ms = self.world.now_ms + PROGRESS_MS
        while transacting.open:
            if self.world.now_ms > deadline_ms:
                raise InvariantViolated("Progress", "transactions do not come to an end", open=transacting.open[:10])
            await self.world.sleep_ms(50)
        self.world.kill(TRANSACTING)
        await self.world.sleep_ms(options.timeout_ms + 5_000)
        main = self.world.spawn(TRANSACTING, transacting.look_at_the_end).main
        assert main is not None
        await self.cluster.wait_for("the transactions' topics are read", self._reading_ms(), main.done)
        main.result()

    async def _finish_secured(self, secured: Secured) -> None:
        """Wait until every change is answered and applied on every node; then let all users access each broker."""
        await self.cluster.wait_for("the admin's changes are answered", PROGRESS_MS, lambda: secured.admin.done)
        await self.world.sleep_ms(1_000)  # brokers hear of the last change
        for live in self.cluster.nodes():
            secured.check_image(f"n{live.number}", live.node.publisher.image)
        self.world.kill(SECURED)
        main = self.world.spawn(SECURED, secured.look_at_the_end).main
        assert main is not None
        await self.cluster.wait_for("everybody has tried to get in", PROGRESS_MS, main.done)
        main.result()

    async def _finish_tiers(self) -> None:
        """Give the reaper its time for what was cut short: the grace, and a few rounds of it."""
        deadline_ms = self.world.now_ms + GRACE_MS + PROGRESS_MS
        while self.cluster.leaks() and self.world.now_ms < deadline_ms:
            await self.world.sleep_ms(1_000)
        self.cluster.check_leaks()

    def _judge(self) -> None:
        anomalies = judge(self.history)
        if anomalies:
            first = anomalies[0]
            raise InvariantViolated(first.name, str(first), count=len(anomalies))
        compacted = self.cluster.compacted()
        tiered = self.cluster.tiered_batches()
        compare_replicas(
            lambda name, where: self.cluster.place(int(name[1:]), where),
            self.cluster.high_watermarks(),
            self.history.sends,
            compacted,
            tiered=tiered,
        )
        self._judge_producers(tiered)
        self._check_unhandled()

    def _check_unhandled(self) -> None:
        """Raise the error that ended a callback or a task. Otherwise a part that waits for it would wait for ever."""
        if self.world.loop.unhandled:
            raise InvariantViolated("NoUnhandledErrors", _describe(self.world.loop.unhandled[0]))

    def _judge_producers(self, tiered: Mapping[str, list[tuple[StoredBatch, bytes]]]) -> None:
        known: dict[str, dict[str, Known]] = {}
        starts: dict[str, int] = {}
        for live in self.cluster.nodes():
            for partition in self.cluster.replicas(live):
                name, plog = str(partition.topic_partition), partition.log
                if plog is not None and name in tiered:
                    starts[name] = max(starts.get(name, 0), partition.state.tier.start_offset)
                    known.setdefault(name, {})[f"n{live.number}"] = {
                        entry.producer_id: (entry.epoch, entry.batches[-1].last_offset if entry.batches else -1)
                        for entry in plog.producers.entries()
                    }
        for name, replicas in known.items():
            check_producers(name, tiered[name], starts[name], replicas)

    def _figures(self) -> dict[str, Any]:
        history = self.history
        virtual_s = self.world.now_ms / 1000
        return {
            "trace": f"{self.world.trace:016x}",
            "events": self.world.loop.events,
            "virtual_s": round(virtual_s, 1),
            "wakeups_per_s": {
                name: round(sum(one.wakeups for one in self.world.processes if one.machine.name == name) / virtual_s)
                for name in self.world.machines
            },
            "sent": len(history.sends),
            "acked": sum(send.acked for send in history.sends),
            "polled": sum(len(poll.records) for poll in history.polls),
            "faults": len(self.nemesis.events),
            **self.cluster.counted(),
            "marks": {name: count for name, count in marks.counts().items() if count},
            "struck": {name: count for name, count in sorted(self.nemesis.struck.items()) if count},
            "effects": {name: count for name, count in sorted(self.world.loop.effects.items()) if count},
            "realtime_lag_ms": round(realtime_lag_ms(history)),
            "errors": self.workload.errors,
            **({} if self.drains is None else {"drains": dict(self.drains.figures)}),
            **({} if self.voters is None else {"voter_changes": self.voters.made}),
            **({} if self.services is None else {"services": self.services.figures()}),
            **({} if self.users is None else {"users": self.users.figures()}),
            **({} if self.transacting is None else {"transactions": self.transacting.figures()}),
            **({} if self.secured is None else {"secured": self.secured.figures()}),
        }


def _describe(context: dict[str, Any]) -> str:
    """An unhandled error of a run, in one line."""
    error = context.get("exception")
    return f"{context.get('owner')} at {context.get('at_us')} us: {context.get('message')}: {error!r}"
