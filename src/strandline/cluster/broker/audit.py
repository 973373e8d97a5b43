"""The audit: one line for each login and each change that a client asks for, with the principal, its address and the
result.

Handlers do not know of the audit: the APIs that change something are wrapped, and their requests and responses are
decoded a second time. Lines name resources and never hold a secret. Lines of denied requests come from the authorizer.

Every change has a line, and none is cut (rule A28), although a request may hold many changes and a change many
characters: the first `CHANGES_MAX` have a line each, the others share lines, and text too long for a line goes on in
the next. Lines of logins and of failed changes are limited in rate, for each principal and in total; otherwise any
client could push the changes out of the audit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import structlog

from strandline.cluster.broker.api import Change, Changes, ServedApi, read_request_in_steps
from strandline.cluster.broker.request import FREE, Charge, Exchange, Explain, RequestContext, Sink
from strandline.proto.audit import LEFT_OUT, UNKNOWN, may_be_made
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ProtocolError
from strandline.proto.kafka import schema
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.fields import Piece
from strandline.proto.steps import Steps, at_once

log = structlog.get_logger("strandline.audit")

CHANGES_MAX = 100
"""Maximum changes of one request that get a line each; further ones share lines, one line for each result."""

CHARS_MAX = 8_000
"""Maximum characters of the changes in one line."""

BETWEEN = "; "
"""Separator of changes that share a line."""

WINDOW_MS = 10_000.0
"""Milliseconds of the windows in which rates are counted; after a window a line tells how many lines were left out."""

KEY_CHARS_MAX = 256
"""Characters of a principal's name that are compared; longer names with the same beginning share a rate."""

LOGINS_MAX = (10, 1_000)
"""Maximum lines of logins in a window, per principal and in total, so that a client that authenticates again and again
pushes nothing out of the audit."""

FAILED_LOGINS_MAX = (20, 100)
"""Maximum lines of failed logins in a window, per address and in total."""

FAILED_CHANGES_MAX = (100, 1_000)
"""Maximum lines of failed changes in a window, per principal and in total: a principal that may change one topic could
ask to change a million that do not exist."""

NAME_CHARS_MAX = 256
"""Maximum characters of a client.id in a line: clients choose it."""

ALL_ASKED = "all that the request asks for"
"""Name of the change if the response names no change and has no error field: ElectLeaders version 0 for all
partitions."""

NO_LINE = "internal error: a change has no line in the audit"

DENIED = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    }
)
"""Errors that have no line here: the authorizer writes one, at a bounded rate, so that clients without rights cannot
fill the audit with denials."""


class Audit:
    """Wraps the APIs that change something, and writes a line for each change to the logger `strandline.audit` and to
    `sink`."""

    def __init__(self, sink: Sink | None) -> None:
        self._sink = sink
        self._logins = LineRate(*LOGINS_MAX, self._tells("logins"))
        self._failed_logins = LineRate(*FAILED_LOGINS_MAX, self._tells("logins that failed"))
        self._failed_changes = LineRate(*FAILED_CHANGES_MAX, self._tells("changes that failed"))

    def intercept(self, apis: Mapping[int, ServedApi]) -> dict[int, ServedApi]:
        """Return the APIs by key, with those that change something wrapped."""
        return {
            key: served if served.changes is None else self._audited(served, served.changes)
            for key, served in apis.items()
        }

    def close(self) -> None:
        """Write how many lines the rates have left out so far."""
        for rate in (self._logins, self._failed_logins, self._failed_changes):
            rate.close()

    def login(self, context: RequestContext, mechanism: str, user: str, result: ErrorCode) -> None:
        """Write a line for a successful or failed authentication. `user`: the name that the client claimed."""
        if result is ErrorCode.NONE:
            admitted = self._logins.admits(context.principal, context.received_ms)  # rule A28/logins-fill-the-audit
        else:
            # rule A19/failed-logins-fill-the-audit
            admitted = self._failed_logins.admits(context.peer.host, context.received_ms)
        if admitted:
            what = f"{mechanism or 'no mechanism'} of {user!r}" if user else mechanism or "no mechanism"
            self._write(context, "login", Line(what, result.name, {}))

    def _tells(self, of_what: str) -> Callable[[int], None]:
        def tell(lines: int) -> None:
            figures = {"principal": "", "what": of_what, "lines": lines}
            log.info(LEFT_OUT, **figures)
            if self._sink is not None:
                self._sink.write(LEFT_OUT, figures)

        return tell

    def _audited(self, served: ServedApi, changes: Changes) -> ServedApi:
        def handle(exchange: Exchange, body: memoryview) -> None:
            if not served.serves(exchange.context.version):
                served.handle(exchange, body)
                return
            asked = bytes(body)
            context, row = exchange.context, (served.api, changes)
            watched = _Watched(exchange, lambda answer: self._note(row, context, asked, answer))

            def gone() -> None:
                """Write lines for all requested changes, result unknown: the client left before the response."""
                ended = _Watched(exchange, lambda answer: self._note(row, context, asked, answer, UNKNOWN))
                ended.answers = False
                try:
                    if not served.refuse_all(ended, memoryview(asked), ErrorCode.REQUEST_TIMED_OUT):
                        # rule A28/unnamed-changes-are-unseen
                        self._write(context, "change", Line(ALL_ASKED, UNKNOWN, {}))
                except ProtocolError:  # malformed, and not decoded completely yet: it asked for nothing
                    pass
                except Exception:  # the cleanup of the connection must go on
                    log.exception(NO_LINE, api=context.api, version=context.version)

            served.handle(watched, memoryview(asked))
            if not exchange.ready and not watched.is_seen:  # a client that leaves from now on has asked for changes
                exchange.when_gone = gone  # rule A20/whoever-leaves-is-unseen

        return replace(served, handle=handle)

    def _note(
        self,
        row: tuple[Api, Changes],
        context: RequestContext,
        asked: bytes,
        answer: Sequence[Piece],
        result: str = "",
    ) -> Steps[None]:
        api, changes = row
        try:
            request = yield from read_request_in_steps(api, context.version, asked)
            if _is_rehearsal(request):
                return
            said = yield from schema.response(api, context.version).decode_in_steps(b"".join(answer))
            # rule A20/strangers-fill-the-audit
            told = (one for one in changes(request, said) if one[1] not in DENIED)
            for line in lines_of(self._admitted(context, told, result)):
                self._write(context, "change", line)
                yield
        except Exception:
            log.exception(NO_LINE, api=context.api, version=context.version)

    def _admitted(self, context: RequestContext, changes: Iterable[Change], result: str) -> Iterator[tuple[str, str]]:
        """Yield the changes that get a line: all that were or may have been made, and failed ones at a bounded rate."""
        for what, error in changes:
            name = result or error.name
            # rule A28/failures-without-number
            if may_be_made(name) or self._failed_changes.admits(context.principal, context.received_ms):
                yield what, name

    def _write(self, context: RequestContext, event: str, line: Line) -> None:
        figures = {
            "principal": context.principal,
            "host": context.peer.host,
            "listener": context.peer.listener,
            "client_id": context.client_id[:NAME_CHARS_MAX],
            "api": context.api,
            "what": line.what,
            "result": line.result,
            **line.more,
        }
        log.info(event, **figures)
        if self._sink is not None:
            self._sink.write(event, figures)


def _is_rehearsal(request: Any) -> bool:
    """True if the request changes nothing: one with validate_only, or the preview of an election."""
    return bool(getattr(request, "validate_only", False)) or getattr(request, "election_type", 0) < 0


class _Watched(Exchange):
    """An exchange that passes its response to `see` before it is sent."""

    __slots__ = ("_inner", "_see", "answers", "is_seen")

    def __init__(self, inner: Exchange, see: Callable[[Sequence[Piece]], Steps[None]]) -> None:
        super().__init__(inner.connection, inner.context, inner.flexible_header)
        self._inner = inner
        self._see = see
        self.answers = True
        """Send the response; False: pass it to `see` only."""
        self.is_seen = False
        """True once `see` has the response: each change gets its line even if the client leaves."""

    def throttle_ms(self) -> int:
        return self._inner.throttle_ms() if self.answers else 0

    def charge(self) -> Charge:
        return self._inner.charge() if self.answers else FREE  # rule A21/audited-changes-are-free

    @property
    def runs_alone(self) -> bool:
        return self._inner.runs_alone

    def timed(self, work: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None]:
        return self._inner.timed(work)

    def begin_step(self, now_ms: float) -> None:
        self._inner.begin_step(now_ms)

    def end_step(self, now_ms: float) -> None:
        self._inner.end_step(now_ms)

    def explained_by(self, explain: Explain) -> None:
        self._inner.explained_by(explain)

    def respond(self, body: Sequence[Piece]) -> None:
        at_once(self.respond_in_steps(body))

    def respond_in_steps(self, body: Sequence[Piece]) -> Steps[None]:
        self.is_seen = True
        if self.answers:
            self._inner.when_gone = None
        steps = self._see(body)
        try:
            for _ in steps:
                yield
        except GeneratorExit:
            at_once(steps)  # rule A28/who-leaves-while-lines-are-written-is-unseen
            raise
        if self.answers:
            self._inner.respond(body)

    def drop_connection(self, reason: str) -> None:
        self._inner.drop_connection(reason)


# Lines


class Line(NamedTuple):
    """One line of the audit.

    Attributes:
        what: the change, or several changes that share the line.
        result: name of the error code, or `UNKNOWN`.
        more: fields that only some lines have: ``changes``, the number that share the line; ``part``, as ``2/3``, of a
            change too long for one line.
    """

    what: str
    result: str
    more: Mapping[str, object]


def lines_of(changes: Iterable[tuple[str, str]]) -> Iterator[Line]:
    """Yield the lines for the changes of one request, given as (what, result), in their order."""
    alone = 0
    shared: list[str] = []
    size, of_shared = 0, ""
    for what, result in changes:
        fits = result == of_shared and size + len(what) + len(BETWEEN) <= CHARS_MAX
        if shared and not fits:
            yield _share(shared, of_shared)
            shared, size = [], 0
        if len(what) > CHARS_MAX:
            yield from _parts(what, result)
        elif alone < CHANGES_MAX:
            alone += 1
            yield Line(what, result, {})
        else:
            shared.append(what)  # rule A28/the-hundredth-change-is-the-last
            size, of_shared = size + len(what) + len(BETWEEN), result
    if shared:
        yield _share(shared, of_shared)


def _share(changes: list[str], result: str) -> Line:
    return Line(BETWEEN.join(changes), result, {"changes": len(changes)})


def _parts(what: str, result: str) -> Iterator[Line]:
    count = -(-len(what) // CHARS_MAX)
    for number in range(count):  # rule A28/long-changes-are-cut
        piece = what[number * CHARS_MAX : (number + 1) * CHARS_MAX]
        yield Line(piece, result, {"part": f"{number + 1}/{count}"})


class LineRate:
    """Limits the lines of one kind in each window.

    Args:
        of_one, of_all: maximum lines in a window, per principal (or address) and in total.
        tell: called with the number of lines left out, if any, after a window and by `close`.
    """

    def __init__(self, of_one: int, of_all: int, tell: Callable[[int], None]) -> None:
        self._of_one, self._of_all = of_one, of_all
        self._tell = tell
        self._since_ms = -WINDOW_MS
        self._written: dict[str, int] = {}
        self._total = 0
        self._left_out = 0
        self._timer: asyncio.TimerHandle | None = None

    def admits(self, whose: str, now_ms: float) -> bool:
        """Return whether a line of the principal or address `whose` may be written at `now_ms`; count it if not."""
        if now_ms - self._since_ms >= WINDOW_MS:
            self._since_ms = now_ms
            self._written.clear()
            self._total = 0
        key = whose[:KEY_CHARS_MAX]
        count = self._written.get(key, 0)
        if self._total >= self._of_all or count >= self._of_one:
            self._left_out += 1
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(WINDOW_MS / 1000, self.close)
            return False
        self._written[key] = count + 1
        self._total += 1
        return True

    def close(self) -> None:
        """Report how many lines were left out so far."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        count, self._left_out = self._left_out, 0
        if count:
            self._tell(count)
