"""Kafka's StandardAuthorizer: decides by the access control entries in this broker's metadata image.

Decisions are cached until an entry changes, so that a produce or a fetch costs one look-up for each topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import structlog

from strandline.cluster.broker.request import Action, RequestContext, Sink
from strandline.cluster.security.acl_rules import AclRules, Asker, Decision
from strandline.proto.acls import AclBinding, AclFilter, Operation, Resource, ResourceKind
from strandline.proto.ports import Clock

log = structlog.get_logger("strandline.authorizer")

REMEMBERED_MAX = 10_000
"""Maximum cached decisions; one more empties the cache."""

REMEMBERED_CHARS_MAX = 256
"""Maximum characters of a resource name whose decision is cached, so that 10,000 names chosen by a client take 5 MB at
most."""

LOG_MS = 10_000.0
"""Milliseconds of the window in which equal denials are logged once."""

LOGGED_MAX = 100
"""Maximum denials logged in a window; further ones are only counted."""

NOT_CAUGHT_UP = "this broker has not caught up with the metadata"

_Question = tuple[str, str, Operation, Resource]


class StandardAuthorizer:
    """Decides for one broker.

    Args:
        acls: returns the current entries, a new mapping object whenever one has changed (`MetadataImage.acls`).
        caught_up: returns whether this broker has read the cluster's entries. Until then only super users may do
            anything, whatever `allow_unnamed` says (Kafka's AuthorizerNotReadyException).
        super_users, allow_unnamed: as for `AclRules`.
        sink: also gets the logged denials.

    Attributes:
        denied: number of denials that a client asked for itself (`noted`), one per operation and resource.
    """

    enabled = True

    def __init__(
        self,
        acls: Callable[[], Mapping[AclBinding, object]],
        clock: Clock,
        *,
        caught_up: Callable[[], bool] = lambda: True,
        super_users: Iterable[str] = (),
        allow_unnamed: bool = False,
        sink: Sink | None = None,
    ) -> None:
        self._acls = acls
        self._caught_up = caught_up
        self._super_users = frozenset(super_users)
        self._allow_unnamed = allow_unnamed
        self._made_of = acls()
        self._rules = AclRules(self._made_of, self._super_users, allow_unnamed)
        self._remembered: dict[_Question, bool] = {}
        self._notes = _Denials(clock)
        self._sink = sink
        self.denied = 0

    @property
    def generation(self) -> object:
        """The entries by which decisions are made; see `Authorizer`."""
        return self._acls()

    @property
    def acl_count(self) -> int:
        """Number of access control entries."""
        return len(self._acls())

    def authorize(self, context: RequestContext, actions: Sequence[Action], *, noted: bool = True) -> Sequence[bool]:
        """See `Authorizer`."""
        if self._acls() is not self._made_of:
            self._make_anew()
        principal, host = context.peer.principal, context.peer.host
        answers: list[bool] = []
        for operation, resource in actions:
            question = (principal, host, operation, resource)  # rule A20/one-principals-answer-for-all
            answer = self._remembered.get(question)
            if answer is None:
                answer = self._decide(question)
            if not answer and noted:
                self._note(context, question)
            answers.append(answer)
        return answers

    def authorize_any(self, context: RequestContext, operation: Operation, kind: ResourceKind) -> bool:
        """See `Authorizer`."""
        if self._acls() is not self._made_of:
            self._make_anew()
        principal = context.peer.principal
        if not self._caught_up():
            return self._rules.is_super_user(principal)
        return self._rules.decide_any(Asker(principal, context.peer.host), operation, kind)

    def describe(self, wanted: AclFilter) -> list[AclBinding]:
        """See `Authorizer`."""
        return sorted(binding for binding in self._acls() if wanted.fits(binding))

    def _make_anew(self) -> None:
        self._made_of = self._acls()
        self._rules = AclRules(self._made_of, self._super_users, self._allow_unnamed)
        self._remembered.clear()  # rule A20/answers-outlive-the-acls

    def _decide(self, question: _Question) -> bool:
        # rule A20/a-broker-behind-allows
        if not self._caught_up():  # not cached
            return self._rules.is_super_user(question[0])
        answer = self._why(question).allowed  # rule A20/everybody-is-allowed
        if len(question[3].name) <= REMEMBERED_CHARS_MAX:
            if len(self._remembered) >= REMEMBERED_MAX:
                self._remembered.clear()
            self._remembered[question] = answer
        return answer

    def _why(self, question: _Question) -> Decision:
        principal, host, operation, resource = question
        return self._rules.decide(Asker(principal, host), operation, resource)

    def _note(self, context: RequestContext, question: _Question) -> None:
        self.denied += 1
        if not self._notes.may_log(question):
            return
        principal, host, operation, (kind, name) = question
        figures: dict[str, Any] = {
            "principal": principal,
            "host": host,
            "listener": context.peer.listener,
            "client_id": context.client_id[:REMEMBERED_CHARS_MAX],
            "api": context.api,
            "operation": operation.name,
            "resource_type": kind.name,
            "resource": name[:REMEMBERED_CHARS_MAX],
            "because": str(self._why(question).because) if self._caught_up() else NOT_CAUGHT_UP,
            "suppressed": self._notes.take_suppressed(),
        }
        log.info("denied", **figures)
        if self._sink is not None:
            self._sink.write("denied", figures)


class _Denials:
    """Limits the logged denials: equal ones once per window of `LOG_MS`, `LOGGED_MAX` in total. Otherwise any client
    could fill the disk with them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_ms = -LOG_MS
        self._logged: set[_Question] = set()
        self._suppressed = 0

    def may_log(self, question: _Question) -> bool:
        """Return whether to log a denial; if not, it is counted."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._since_ms >= LOG_MS:
            self._since_ms = now_ms
            self._logged.clear()
        if question in self._logged or len(self._logged) >= LOGGED_MAX:
            self._suppressed += 1
            return False
        self._logged.add(question)
        return True

    def take_suppressed(self) -> int:
        """Return and reset the number of denials not logged since the last call."""
        count, self._suppressed = self._suppressed, 0
        return count
