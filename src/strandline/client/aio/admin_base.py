"""An operation of the admin clients, declared once: whom it asks which API, where the items of an answer stand.

A method below `Operation` returns the `Question` that its arguments make; what both clients have is made from it: the
coroutine of `strandline.client.aio.Admin` and the waiting call of `strandline.client.Admin`, which ask, ask again
while that may help, read each item, and raise its error in words. A method that asks several things returns its result
itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial, wraps
from inspect import signature
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, Unpack, cast, overload

from strandline.client.config import AdminConfig
from strandline.client.coordinator import Coordinator
from strandline.client.errors import ManyErrors, UnknownTopic
from strandline.client.leaders import Leaders
from strandline.client.limits import Limit, note
from strandline.client.network import CONTROL, SUPPORTED, Connection
from strandline.client.rights import answered
from strandline.client.session import Session
from strandline.client.settings import AdminSettings
from strandline.client.types import NodeInfo
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, StrandlineError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.fields import Unencodable
from strandline.proto.ports import Clock, Rng

NEW_TOPIC_GRACE_MS = 500
"""Milliseconds for which an unknown topic is asked for again: a broker may not know a topic yet that was just
created."""

ASKED_AT_ONCE = 16
"""Coordinators."""

P = ParamSpec("P")
T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
C = TypeVar("C", bound=Coordinator)

Values = Mapping[str, Any]
"""A request, as the schema of its API names the fields."""

_SEND_AGAIN = frozenset(
    {
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.BROKER_NOT_AVAILABLE,
    }
)


class Route(Enum):
    """Whom an operation asks."""

    CONTROLLER = "any broker, the controller before the others"
    BROKERS = "the brokers that the items name, one after the other, and any broker for the rest"
    EVERY_BROKER = "every broker, or those that are named, at once"
    LEADERS = "the leaders of the partitions"
    COORDINATORS = "the coordinator of each group or transactional id, within a limit of its own"


class Question(Generic[T]):
    """One request, and what the call returns of its answers.

    Args:
        values: the request; or a function that makes it of the items that one broker is asked about. `timeout` is
            request.timeout.ms.
        value: makes the value of an item in the answer; of the answer itself where the operation has no `each`.
        finish: makes the result of the values, by their keys.
        items: what is asked about, in the order of the request. None: the request says it all.
        key: makes the key of an item in the answer. None: as the operation says.
        broker: the broker that an item names, None for any (`Route.BROKERS`).
        words: the words of an answer that is an error as a whole. None: its `error_message`.
        least: the first version of the API that takes all that is asked: an older one would leave it out in silence
            (`Route.EVERY_BROKER`).
    """

    def __init__(
        self,
        values: Values | Callable[[list[Any]], Values],
        value: Callable[[Any], V],
        finish: Callable[[dict[K, V]], T],
        *,
        items: Iterable[K] | None = None,
        key: Callable[[Any], K] | None = None,
        broker: Callable[[K], int | None] | None = None,
        words: Callable[[Any], str] | None = None,
        least: int = 0,
    ) -> None:
        self.values = values
        self.value: Callable[[Any], Any] = value
        self.finish: Callable[[dict[Any, Any]], T] = finish
        self.items: list[Any] | None = None if items is None else list(dict.fromkeys(items))
        self.key = key
        self.broker: Callable[[Any], int | None] | None = broker
        self.words = words
        self.least = least

    def of(self, items: list[Any]) -> Values:
        """The request about these items."""
        return self.values(items) if callable(self.values) else self.values


class Known(Question[T]):
    """A result that needs no question."""

    def __init__(self, result: T) -> None:
        super().__init__({}, lambda answer: None, lambda values: result)


def nothing(told: Any) -> None:
    """An item says no more than that it was done."""


def by_key(values: dict[K, V]) -> dict[K, V]:
    """The values as they are."""
    return values


def alone(values: dict[Any, V]) -> V:
    """The one value."""
    [value] = values.values()
    return value


def done(values: dict[Any, Any]) -> None:
    """Return nothing: the operation has no result but its success."""


@dataclass(frozen=True)
class Operation:
    """The columns of an operation; a decorator for the method that makes its question.

    Attributes:
        api: what it asks. The rights that it needs are those of the API (`proto.kafka.access`).
        also: APIs that it asks besides: of brokers that lack the first, or before it.
        route: whom it asks.
        each: where the items of an answer stand: the names of the lists, the outer one first. Empty, as in a version
            that lacks the list: it has none.
        key: the fields of an item, one for each list of `each`, that are its name. Empty: items come in the order that
            they were asked in.
        about: what an item's error names it: "topic". Empty: a key says it, and is (kind, name).
        dry_run: the parameter that has everything checked and nothing changed. Empty: there is none.
        grace: items that are unknown topics are asked for again for a moment, NEW_TOPIC_GRACE_MS.
    """

    api: Api
    also: tuple[Api, ...] = ()
    route: Route = Route.CONTROLLER
    each: str = ""
    key: str = ""
    about: str = ""
    dry_run: str = ""
    grace: bool = False

    def __post_init__(self) -> None:
        """Check that the client supports all APIs of the operation. Raises TypeError if not."""
        for api in (self.api, *self.also):
            if api not in SUPPORTED:
                raise TypeError(f"{api.title}: the versions that this client speaks are to stand in client/network.py")

    @overload
    def __call__(self, asks: Callable[Concatenate[Any, P], Coroutine[Any, Any, Question[T]]]) -> Method[P, T]: ...

    @overload
    def __call__(self, asks: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Method[P, T]: ...

    def __call__(self, asks: Any) -> Any:
        return Method(self, asks)

    def entries(self, answer: Any, question: Question[Any], asked: list[Any] | None) -> list[tuple[Any, Any]]:
        """The items of an answer, each with its key."""
        if not self.each:
            return []
        found: list[tuple[Any, ...]] = [()]
        for name in self.each.split("."):
            found = [(*outer, one) for outer in found for one in getattr((answer, *outer)[-1], name, None) or ()]
        if question.key is not None:
            return [(question.key(item[-1]), item[-1]) for item in found]
        if self.key:
            return [(self._key(item), item[-1]) for item in found]
        return [(key, item[-1]) for key, item in zip(asked or (), found, strict=True)]

    def _key(self, item: tuple[Any, ...]) -> Any:
        outer, *inner = (getattr(part, name) for part, name in zip(item, self.key.split("."), strict=True))
        return TopicPartition(outer, *inner) if inner else outer


class Awaited:
    """Base of a client whose calls are coroutines."""


class Waiting:
    """Base of a client whose calls wait."""

    def wait(self, begin: Callable[[], Awaitable[T]]) -> T:
        """The result of the coroutine that `begin` makes."""
        raise TypeError(f"{type(self).__name__} says how its calls wait")


class Method(Generic[P, T]):
    """An operation as an attribute of a client: a coroutine function of one, and of the other one that waits for it.

    The body of an operation has neither: there is no overload for it, since one call has one limit and one thread.
    """

    def __init__(self, operation: Operation, asks: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        self.operation = operation
        shape = signature(asks)
        returns = str(shape.return_annotation)
        if returns.startswith("Question["):
            returns = returns.removeprefix("Question[").removesuffix("]")

        @wraps(asks)
        async def awaited(admin: AdminBase, /, *args: P.args, **kwargs: P.kwargs) -> T:
            return cast(T, await admin._carry_out(operation, partial(asks, admin, *args, **kwargs)))

        function: Any = awaited
        function.__annotations__ = {**asks.__annotations__, "return": returns}
        function.__signature__ = shape.replace(return_annotation=returns)

        @wraps(awaited)
        def waiting(admin: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
            return cast(T, admin.wait(partial(awaited, admin, *args, **kwargs)))

        self._awaited = awaited
        self._waiting = waiting

    @overload
    def __get__(self, admin: Awaited, kind: object = None) -> Callable[P, Coroutine[Any, Any, T]]: ...

    @overload
    def __get__(self, admin: Waiting, kind: object = None) -> Callable[P, T]: ...

    @overload
    def __get__(self, admin: None, kind: type[Awaited]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]: ...

    @overload
    def __get__(self, admin: None, kind: type[Waiting]) -> Callable[Concatenate[Any, P], T]: ...

    def __get__(self, admin: object, kind: Any = None) -> Any:
        function = self._waiting if issubclass(kind, Waiting) else self._awaited
        return function if admin is None else MethodType(function, admin)


def operations_of(kind: type) -> dict[str, Operation]:
    """Every operation of a client, by the name of its call."""
    found = (item for each in kind.__mro__ for item in vars(each).items())
    return {name: item.operation for name, item in found if isinstance(item, Method)}


class AdminBase:
    """Connections, and questions that are repeated while a repetition may help."""

    def __init__(
        self,
        bootstrap: str | Sequence[str] = "127.0.0.1:9092",
        *,
        clock: Clock | None = None,
        rng: Rng | None = None,
        **settings: Unpack[AdminSettings],
    ) -> None:
        self.config = AdminConfig(settings)
        self._use(Session(bootstrap, self.config, clock=clock, rng=rng))

    def _use(self, session: Session) -> None:
        self.session = session
        self._network = session.network
        self._metadata = session.metadata
        self._clock = session.clock
        self._leaders = Leaders(session, self.config.request_timeout_ms)

    async def _carry_out(self, operation: Operation, asks: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """The result of a call: of what it asks, within default.api.timeout.ms.

        Raises:
            ClosedError, ClientError: this client cannot be called here.
            ClientTimeout: nobody answered.
        """
        self.session.check()
        if operation.route is Route.COORDINATORS:
            return await self._result(operation, asks)
        timeout_ms = self.config.default_api_timeout_ms
        limit = Limit(timeout_ms, f"no answer within default.api.timeout.ms={timeout_ms}")
        return await limit.keep(self._result(operation, asks))

    async def _result(self, operation: Operation, asks: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        result = await asks()
        if isinstance(result, Known):
            return result.finish({})
        return await self._put(operation, result) if isinstance(result, Question) else result

    # -- questions --------------------------------------------------------------------------------------------------

    async def _put(self, operation: Operation, question: Question[T]) -> T:
        if operation.route is Route.LEADERS:
            return question.finish(await self._ask_leaders(operation, question))
        if operation.route is Route.EVERY_BROKER:
            return question.finish(await self._retrying(partial(self._ask_every_broker, operation, question)))
        results: dict[Any, Any] = {}
        errors: dict[Any, Exception] = {}

        async def ask() -> bool:
            errors.clear()
            asked = None if question.items is None else [item for item in question.items if item not in results]
            for node_id, items in _by_broker(question, asked):
                found, failed = await self._ask_about(operation, question, items, node_id)
                results.update(found)
                errors.update(failed)
            return operation.grace and any(isinstance(error, UnknownTopic) for error in errors.values())

        await self._while_unknown(ask)
        return question.finish(results_of(results, errors))

    async def _ask_about(
        self, operation: Operation, question: Question[Any], items: list[Any] | None, node_id: int | None
    ) -> tuple[dict[Any, Any], dict[Any, Exception]]:
        """Ask one broker, or any, about some items; the values and the errors in its answer."""

        def entries(answer: Any) -> list[tuple[Any, Any]]:
            # An answer that refuses the whole request may leave out its items.
            return operation.entries(answer, question, items) if _code(answer) is ErrorCode.NONE else []

        def again(answer: Any) -> KafkaError | None:
            told = [(_code(one), _words(one)) for one in (answer, *(entry for _, entry in entries(answer)))]
            return next((KafkaError(code, words) for code, words in told if code in _SEND_AGAIN), None)

        answer = await self._call(operation.api, question.of(items or []), again, node_id)
        self._check(operation, question, answer)
        if not operation.each:
            return {node_id: question.value(answer)}, {}
        results: dict[Any, Any] = {}
        errors: dict[Any, Exception] = {}
        for key, entry in entries(answer):
            if _code(entry) is ErrorCode.NONE:
                results[key] = question.value(entry)
            else:
                errors[key] = self._error(operation, key, _code(entry), _words(entry))
        for key in items or ():
            if key not in results and key not in errors:
                errors[key] = self._error(operation, key, ErrorCode.UNKNOWN_SERVER_ERROR, "no answer for it")
        return results, errors

    async def _ask_every_broker(self, operation: Operation, question: Question[Any]) -> dict[int, Any]:
        timeout_ms = self.config.request_timeout_ms
        await self._metadata.update(timeout_ms)
        node_ids = sorted(self._metadata.nodes) if question.items is None else question.items
        connections = [await self._network.to_node(await self._node(node_id), CONTROL) for node_id in node_ids]
        for one in connections:
            version = one.version(operation.api)
            if version < question.least:
                words = f"{one.endpoint} speaks {operation.api.name} {version} at most; {question.least} says this"
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, words)
        values = question.of(node_ids)
        answers = await asyncio.gather(*(one.call(operation.api, values, timeout_ms) for one in connections))
        for answer in answers:
            self._check(operation, question, answer)
        return {node_id: question.value(answer) for node_id, answer in zip(node_ids, answers, strict=True)}

    async def _ask_leaders(self, operation: Operation, question: Question[Any]) -> dict[TopicPartition, Any]:
        def read(entry: Any, topic: str) -> Any:
            code = _code(entry)
            if code is ErrorCode.NONE:
                return question.value(entry)
            return answered(self.config, operation.api, code, _words(entry), of=topic)

        async def ask(connection: Connection, asked: list[TopicPartition]) -> dict[TopicPartition, Any]:
            timeout_ms = self.config.request_timeout_ms
            values = {"timeout": timeout_ms, **question.of(asked)}
            answer = await connection.call(operation.api, values, timeout_ms)
            return {key: read(entry, key.topic) for key, entry in operation.entries(answer, question, asked)}

        return await self._leaders.ask(question.items or (), ask, self.config.default_api_timeout_ms)

    async def _ask_coordinators(
        self,
        coordinators: Iterable[C],
        ask: Callable[[C], Awaitable[T]],
        sentences: Mapping[ErrorCode, str],
    ) -> dict[str, T]:
        """Ask each one, within one limit; errors that have a sentence get it. A coordinator that is silent takes
        nothing from the others' answers."""
        until_ms = self._clock.monotonic_ms() + self.config.default_api_timeout_ms
        in_turn = asyncio.Semaphore(ASKED_AT_ONCE)
        results: dict[str, T] = {}
        errors: dict[Any, Exception] = {}

        async def one(coordinator: C) -> None:
            key = coordinator.key
            try:
                async with in_turn:
                    left_ms = until_ms - self._clock.monotonic_ms()
                    results[key] = await coordinator.retrying(lambda: ask(coordinator), left_ms)
            except KafkaError as error:
                errors[key] = KafkaError(error.code, sentences.get(error.code, error.message), **error.figures)
            except StrandlineError as error:
                errors[key] = error

        asked = list(coordinators)
        await asyncio.gather(*(one(coordinator) for coordinator in asked))
        return results_of({one.key: results[one.key] for one in asked if one.key in results}, errors)

    def _check(self, operation: Operation, question: Question[Any], answer: Any) -> None:
        """Check an answer. Raises KafkaError if the answer as a whole is an error."""
        code = _code(answer)
        if code is not ErrorCode.NONE:  # rule A31/log-dirs-that-are-denied-are-none
            words = _words(answer) if question.words is None else question.words(answer)
            raise answered(self.config, operation.api, code, words)

    def _error(self, operation: Operation, key: Any, code: ErrorCode, words: str) -> KafkaError:
        """The error of one item in an answer."""
        kind, name = (operation.about, str(key)) if operation.about else key
        if kind == "topic" and code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID):
            return UnknownTopic(name)
        return answered(self.config, operation.api, code, words, of=name, **{kind: name})

    async def _call(
        self,
        api: Api,
        values: Values,
        again: Callable[[Any], KafkaError | None] = lambda answer: None,
        node_id: int | None = None,
    ) -> Any:
        """One request to any broker (or to `node_id`); sent again while `again` makes an error of the answer."""

        async def ask() -> Any:
            timeout_ms = self.config.request_timeout_ms
            if node_id is None:
                connection = await self._network.to_any(self._controller_first())
            else:
                connection = await self._network.to_node(await self._node(node_id), CONTROL)
            answer = await connection.call(api, {"timeout": timeout_ms, **values}, timeout_ms)
            error = again(answer)
            if error is not None:
                await self._metadata.update(timeout_ms)
                raise KafkaError(error.code, error.message or f"{connection.endpoint} answered {api.name} so")
            return answer

        return await self._retrying(ask)

    async def _retrying(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Repeat a question until it succeeds or the call's time limit is reached, see `_carry_out`."""
        failures = 0
        while True:
            try:
                return await ask()
            except KafkaError as error:
                if not error.retriable:
                    raise
                note(error)
            except Unencodable:
                raise
            except StrandlineError as error:
                note(error)
            failures += 1
            await asyncio.sleep(self.session.backoff_ms(failures) / 1000)

    async def _while_unknown(self, ask: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        """Ask until no topic is unknown (what `ask` returns says whether one is), for NEW_TOPIC_GRACE_MS at most."""
        until_ms = self._clock.monotonic_ms() + NEW_TOPIC_GRACE_MS
        while True:
            if not await ask() or self._clock.monotonic_ms() >= until_ms:
                return
            await asyncio.sleep(self.config.retry_backoff_ms / 1000)

    def _controller_first(self) -> list[NodeInfo]:
        nodes = list(self._metadata.nodes.values())
        return sorted(nodes, key=lambda node: node.node_id != self._metadata.controller_id)

    async def _node(self, node_id: int) -> NodeInfo:
        if node_id not in self._metadata.nodes:
            await self._metadata.update(self.config.request_timeout_ms)
        node = self._metadata.nodes.get(node_id)
        if node is None:
            if self._metadata.last_error is not None:
                raise self._metadata.last_error
            known = ", ".join(str(number) for number in sorted(self._metadata.nodes))
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"there is no broker {node_id}; the brokers are {known}")
        return node


def _by_broker(question: Question[Any], items: list[Any] | None) -> list[tuple[int | None, list[Any] | None]]:
    """Items by the broker that each names."""
    if items is None or question.broker is None:
        return [(None, items)]
    groups: dict[int | None, list[Any] | None] = {}
    for item in items:
        cast(list[Any], groups.setdefault(question.broker(item), [])).append(item)
    return list(groups.items())


def _code(told: Any) -> ErrorCode:
    """The error of an answer, or of an item in it, that may have none."""
    return cast(ErrorCode, getattr(told, "error_code", ErrorCode.NONE))


def _words(told: Any) -> str:
    return getattr(told, "error_message", None) or ""


def results_of(results: dict[Any, T], errors: Mapping[Any, Exception]) -> dict[Any, T]:
    """The results, unless something failed: the one error of the one question, or ManyErrors."""
    if len(errors) == 1 and not results:
        raise next(iter(errors.values()))
    if errors:
        raise ManyErrors(results, errors)
    return results
