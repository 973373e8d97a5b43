"""The explored quorum: three voters, the calls between them, and everything that can happen to either."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from lab.explore import quorum_rules as rules
from lab.explore.bounds import QuorumBounds
from lab.explore.calls import BROKEN, Call, Calls, kind_of
from lab.explore.model import (
    FIRST_MESSAGE,
    FIRST_NODE,
    NODES,
    RENAMINGS,
    SHARED,
    State,
    Step,
    View,
    Violation,
    refused,
)
from lab.explore.parts import Parts
from lab.explore.quorum_rules import History, VoterView, look
from lab.explore.trace import prelude
from lab.explore.voters import CODEC, Answered, Voter
from strandline.chaos.explain.recorder import QUORUM
from strandline.controller.raft.messages import SendRequest
from strandline.proto.errors import FatalError
from strandline.proto.ids import NodeId


class Outcome(NamedTuple):
    """Result of one voter's step, in digests."""

    voter: int
    requests: tuple[int, ...]
    """Calls that it makes."""
    answers: dict[int, int]
    """Calls that it held -> the same calls, answered."""
    new_role: bool
    """True: nobody waits any more for what its present role had asked."""
    violation: Violation | None


_NETWORK, _CRASHES, _RECORDS, _TIMEOUTS, _SNAPSHOTS, _ZEROS = 1, 1 << 4, 1 << 8, 1 << 12, 1 << 16, 1 << 20
"""Units of the packed budget, one number: what is left of each, and how many records were written."""

LOST_MAX = 2
"""Batches that a disk does not give back."""

_ENDS = ("crash", "zeroed")
"""The process ends and starts again."""

_ANY = 0xF
_PLENTY = 0xFF0FF


class QuorumModel:
    """Calls are carried out and answered at once, unless the budget of the network is spent on something else.

    A fetch that its leader holds is answered later, when it pleases. Calls of a role that is over are forgotten, or at
    the network's cost stay under way. A process that ends starts again at once: a voter that stays down is one that
    nothing reaches and whose timers do not run out.
    """

    name = "quorum"
    subject = QUORUM

    def __init__(self, bounds: QuorumBounds, after: Sequence[str] = ()) -> None:
        """The search begins after the steps named `after`, which cost nothing but records."""
        self.bounds = bounds
        self._prelude = tuple(after)
        self.parts = Parts(CODEC, RENAMINGS)
        self.calls = Calls(self.parts)
        self._outcomes: dict[tuple[Any, ...], Outcome] = {}
        self._looks: dict[int, VoterView] = {}
        self._histories: dict[int, History] = {}
        self._judged: dict[tuple[Any, ...], int | Violation] = {}

    # Starts

    def starts(self) -> Sequence[State]:
        """Three voters without a past, started, and led through the prelude."""
        voters = []
        for node in NODES:
            voter = Voter(node)
            voter.start_process()
            voters.append(self.parts.put(voter))
        bounds = self.bounds
        budget = (
            bounds.network * _NETWORK
            + bounds.crashes * _CRASHES
            + bounds.timeouts * _TIMEOUTS
            + bounds.snapshots * _SNAPSHOTS
            + bounds.zeros * _ZEROS
        )
        return [prelude(self, (_PLENTY, *voters, self.parts.put(History())), self._prelude, _RECORDS, budget)]

    # Steps

    def steps(self, state: State) -> Iterator[Step]:
        """Everything that can happen next."""
        for node in NODES:
            yield from self._node_steps(state, node)
        before = -1
        for digest in state[FIRST_MESSAGE:]:
            if digest != before:
                yield from self._call_steps(state, digest)
            before = digest

    def _node_steps(self, state: State, node: NodeId) -> Iterator[Step]:
        budget = state[0]
        now = self._look(state[node])
        if budget // _TIMEOUTS & _ANY:
            yield from self._one(state, node, ("timeout",), _TIMEOUTS)
        written = budget // _RECORDS & _ANY
        if now.leads and written < self.bounds.records:
            yield from self._one(state, node, ("append", written), -_RECORDS)
        if now.syncing:
            yield from self._one(state, node, ("sync",), 0)
        if budget // _CRASHES & _ANY:
            for kept in range(now.unsynced + 1):
                yield from self._one(state, node, ("crash", kept), _CRASHES)
        if budget // _ZEROS & _ANY:
            for lost in range(1, min(len(now.disk), LOST_MAX) + 1):
                yield from self._one(state, node, ("zeroed", lost), _ZEROS)
        if budget // _SNAPSHOTS & _ANY and now.high_watermark > now.start.offset and not now.unsynced:
            yield from self._one(state, node, ("snapshot",), _SNAPSHOTS)

    def _one(self, state: State, node: NodeId, event: tuple[Any, ...], cost: int) -> Iterator[Step]:
        """A step of one voter by itself."""
        outcome = self._outcome(state[node], node, event, 0)
        calls = state[FIRST_MESSAGE:]
        if event[0] in _ENDS:
            calls = tuple([self.calls.broken(call, node) for call in calls])
        there = (state[0] - cost, *state[FIRST_NODE:FIRST_MESSAGE], *calls)
        yield from self._after((event[0], node, *event[1:]), there, node, outcome)

    # Calls: in these steps `state` is what is left without the call

    def _call_steps(self, state: State, digest: int) -> Iterator[Step]:
        call = self.calls.get(digest)
        place = state.index(digest, FIRST_MESSAGE)
        rest = state[:place] + state[place + 1 :]
        if call.response is not None:
            yield from self._answer(("answer", digest), rest, digest, call)
        elif not call.parked:
            yield from self._carry_out(rest, digest, call)
        if state[0] & _ANY and call.current:
            outcome = self._outcome(state[call.caller], call.caller, ("failed",), digest)
            left = () if call.parked else (self.calls.given_up(digest),)
            yield from self._after(("given up", digest), _spent(rest, *left), call.caller, outcome)

    def _answer(self, event: tuple[Any, ...], state: State, digest: int, call: Call) -> Iterator[Step]:
        """The answer arrives, or the news that there is none."""
        if call.heard:
            kind = "broken" if call.response == BROKEN else "answered"
            outcome = self._outcome(state[call.caller], call.caller, (kind,), digest)
            yield from self._after(event, state, call.caller, outcome)

    def _carry_out(self, state: State, digest: int, call: Call) -> Iterator[Step]:
        """The request arrives: once, or again later."""
        arrived = self.calls.arriving(digest, state[FIRST_MESSAGE:])
        yield from self._arrive(("call", digest), state, call, arrived)
        if state[0] & _ANY:
            again = _spent(state, self.calls.given_up(digest))
            yield from self._arrive(("call twice", digest), again, call, arrived)

    def _arrive(self, event: tuple[Any, ...], state: State, call: Call, arrived: int) -> Iterator[Step]:
        """The target takes the request, and answers it at once, or late, or holds it."""
        target = call.target
        outcome = self._outcome(state[target], target, ("asked",), arrived)
        answer = outcome.answers.get(arrived)
        if not call.heard:
            yield from self._after(event, state, target, outcome)
        elif answer is None:
            yield from self._after(event, (*state, arrived), target, outcome)
        else:
            if state[0] & _ANY:
                yield from self._after(("held", *event), _spent(state, answer), target, outcome)
            answered = self.calls.get(answer)
            for step in self._after(event, state, target, outcome):
                if step.state is None:
                    yield step
                else:
                    yield from self._answer(step.event, step.state, answer, answered)

    # What follows from one voter's step

    def _after(self, event: tuple[Any, ...], state: State, node: NodeId, outcome: Outcome) -> Iterator[Step]:
        """The states that a voter's step leads to: one, and at the network's cost one for each call that stays under
        way although the role that made it is over. The calls of `state` need not be in order."""
        if outcome.violation is not None:
            yield Step(event, None, outcome.violation)
            return
        voter = outcome.voter
        if self._look(voter).epoch > self.bounds.epochs:
            return
        shared = self._judge(state, node, voter)
        if isinstance(shared, Violation):
            yield Step(event, None, shared)
            return
        under_way, over = self._under_way(state[FIRST_MESSAGE:], node, outcome)
        voters = (
            voter if node == 1 else state[1],
            voter if node == 2 else state[2],
            voter if node == 3 else state[3],
        )
        under_way.sort()
        yield Step(event, (state[0], *voters, shared, *under_way))
        if state[0] & _ANY:
            for late in over:
                calls = sorted([*under_way, late])
                yield Step((*event, late), (state[0] - _NETWORK, *voters, shared, *calls))

    def _under_way(self, calls: tuple[int, ...], node: NodeId, outcome: Outcome) -> tuple[list[int], list[int]]:
        """The calls that go on after a voter's step, its new ones among them; and those that nobody waits for now."""
        over: list[int] = []
        answers = outcome.answers
        if not outcome.new_role:
            return [*(answers.get(digest, digest) for digest in calls), *outcome.requests], over
        left: list[int] = []
        for digest in calls:
            call = self.calls.get(digest)
            if call.caller != node or not call.current:
                left.append(answers.get(digest, digest))
            elif not call.parked:
                over.append(self.calls.over(digest))
        return [*left, *outcome.requests], over

    def _judge(self, state: State, node: NodeId, voter: int) -> int | Violation:
        """The history after a step of `node`, or what it broke."""
        if state[node] == voter:
            return state[SHARED]
        key = (*state[FIRST_NODE:FIRST_MESSAGE], node, voter)
        known = self._judged.get(key)
        if known is None:
            known = self._judged[key] = self._judge_anew(state, node, voter)
        return known

    def _judge_anew(self, state: State, node: NodeId, voter: int) -> int | Violation:
        before, after = self._look(state[node]), self._look(voter)
        if before == after:
            return state[SHARED]
        history: History = self._history(state[SHARED])
        known = history
        if after.leads and after.leads != before.leads:
            judged = rules.new_leader(history, node, after)
            if isinstance(judged, Violation):
                return judged
            history = judged
        if after.high_watermark > before.high_watermark:
            judged = rules.commit(history, node, after)
            if isinstance(judged, Violation):
                return judged
            history = judged
        others = [self._look(state[other]) for other in NODES if other != node]
        if before.disk != after.disk or history is not known:
            violation = rules.majority_holds((after, *others), history.committed)
            if violation is not None:
                return violation
        if before.log != after.log:
            for other in others:
                violation = rules.logs_match(after, other)
                if violation is not None:
                    return violation
        return state[SHARED] if history is known else self.parts.put(history)

    # One voter's step, computed once

    def _outcome(self, digest: int, node: NodeId, event: tuple[Any, ...], call: int) -> Outcome:
        key = (digest, event, call)
        known = self._outcomes.get(key)
        if known is None:
            known = self._outcomes[key] = self._compute(digest, node, event, call)
        return known

    def _compute(self, digest: int, node: NodeId, event: tuple[Any, ...], call_digest: int) -> Outcome:
        voter: Voter = self.parts.get(digest)
        before = look(voter)
        role = voter.role_object
        call = self.calls.get(call_digest) if call_digest else None
        try:
            sent = _do(voter, event, call)
        except (AssertionError, FatalError) as error:
            return Outcome(digest, (), {}, False, refused(node, error))
        violation = rules.judge_step(node, before, look(voter), sent, restarted=event[0] in _ENDS)
        new_role = voter.role_object is not role
        put = self.calls.put
        requests = tuple(put(Call(node, one.to, one.request)) for one in sent if isinstance(one, SendRequest))
        answers = {
            put(one.token): put(one.token._replace(response=one.response, parked=False, copy=0))
            for one in sent
            if isinstance(one, Answered)
        }
        return Outcome(self.parts.put(voter), requests, answers, new_role, violation)

    def _look(self, digest: int) -> VoterView:
        known = self._looks.get(digest)
        if known is None:
            known = self._looks[digest] = look(self.parts.get(digest))
        return known

    def _history(self, digest: int) -> History:
        known = self._histories.get(digest)
        if known is None:
            known = self._histories[digest] = self.parts.get(digest)
        return known

    def forget(self, but: set[int]) -> None:
        """Forget every part that is not named, and all that was computed from it."""
        self.parts.forget(but)
        self.calls = Calls(self.parts)
        for computed in (self._outcomes, self._looks, self._histories, self._judged):
            computed.clear()

    # What is told

    def view(self, state: State) -> View:
        """A state as it is told."""
        looks = {f"n{int(node)}": self._look(state[node]) for node in NODES}
        words = {name: rules.tell_voter(one) for name, one in looks.items()}
        committed = self._history(state[SHARED]).committed
        words["committed"] = rules.tell_log(committed)
        replicas = {name: rules.tell_point(one) for name, one in looks.items()}
        calls = [self._tell_call(digest) for digest in state[FIRST_MESSAGE:]]
        words["under way"] = ", ".join(sorted(calls)) or "nothing"
        return View(replicas, None, words)

    def tell(self, state: State, event: tuple[Any, ...]) -> str:
        """The name of a step."""
        kind, what, *more = event
        if kind == "held":
            return "held " + self.tell(state, tuple(event[1:]))
        if kind in ("call", "call twice", "answer", "given up"):
            words = [kind, self._tell_way(what), *(f"late {self._tell_way(one)}" for one in more)]
            return " ".join(words)
        late = [f"late {self._tell_way(one)}" for one in more if isinstance(one, int) and one > 0xFF]
        how = {"crash": "keeps", "zeroed": "loses"}.get(kind)
        words = [kind, str(int(what)), *([f"{how} {more[0]}"] if how is not None else []), *late]
        return " ".join(words)

    def _tell_way(self, digest: int) -> str:
        call = self.calls.get(digest)
        return f"{int(call.caller)}->{int(call.target)} {kind_of(call.request)}"

    def _tell_call(self, digest: int) -> str:
        call = self.calls.get(digest)
        way = f"{int(call.caller)}->{int(call.target)} {kind_of(call.request)}"
        if call.response is not None:
            return f"{way} {'broken' if call.response == BROKEN else 'answered'}"
        return f"{way} {'held' if call.parked else ''}{'' if call.current else ' of old'}".rstrip()


def _do(voter: Voter, event: tuple[Any, ...], call: Call | None) -> list[Any]:
    """Let one thing happen to a voter."""
    kind = event[0]
    if kind == "timeout":
        return voter.time_out()
    if kind == "append":
        return voter.append(event[1])
    if kind == "sync":
        return voter.synced()
    if kind == "snapshot":
        return voter.take_snapshot()
    if kind == "crash":
        return voter.crash(event[1])
    if kind == "zeroed":
        return voter.zeroed(event[1])
    assert call is not None
    if kind == "asked":
        return voter.asked(call, call.request)
    if kind == "answered":
        assert not isinstance(call.response, str | None)
        return voter.answered(call.target, call.request, call.response, current=call.current)
    return voter.failed(call.target, call.request, broken=kind == "broken")


def _spent(state: State, *calls: int) -> State:
    """The state at the network's cost, with calls that stay under way."""
    return (state[0] - _NETWORK, *state[FIRST_NODE:], *calls)
