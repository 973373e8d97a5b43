"""Helpers for requests with many items, each of which succeeds or fails alone, on this broker or at the controller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Generic, TypeVar

from strandline.cluster.broker.request import Action, Authorizer, Charge, Connection, RequestContext, refusal
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.steps import FEW, Steps, each

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

Refusal = tuple[ErrorCode, str]

THROTTLED = ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded."
"""Error and Kafka's message for an item that exceeds the client's mutation quota (KIP-599)."""


@dataclass(frozen=True, slots=True)
class Price(Generic[Item, Outcome]):
    """Cost of items in created or deleted partitions (KIP-599).

    Attributes:
        charge: the request's charge.
        expected: returns the partitions that an item will create or delete, as far as this broker knows; 0 if it will
            fail.
        paid: returns the partitions that an item has created or deleted, from its outcome and the expected number.
    """

    charge: Charge
    expected: Callable[[Item], int]
    paid: Callable[[Outcome, int], int]


def named_twice(key: Callable[[Item], Hashable], items: Sequence[Item]) -> Steps[list[Refusal | None]]:
    """Return for each item a refusal if its key occurs more than once, else None."""
    seen: dict[Hashable, int] = {}
    for number, item in enumerate(items, 1):
        seen[key(item)] = seen.get(key(item), 0) + 1
        if number % FEW == 0:
            yield
    fault = (ErrorCode.INVALID_REQUEST, "stands more than once in the request")
    return (yield from each(lambda item: fault if seen[key(item)] > 1 else None, items))


def deny(
    authorizer: Authorizer,
    context: RequestContext,
    refusals: list[Refusal | None],
    actions: Iterable[Action],
) -> Steps[None]:
    """Put a refusal into `refusals` for each item whose action the principal may not do; one action per item."""
    for index, action in enumerate(actions):
        if not authorizer.authorize(context, (action,))[0]:
            denied = refusal(context, *action)
            refusals[index] = (denied.code, denied.message)
        if index % FEW == FEW - 1:
            yield


ASKED_MAX = 500
"""Maximum items of one request to the controller, which decides it in one step of its event loop and appends it as one
batch to the metadata log."""


async def ask_in_parts(
    connection: Connection,
    items: Sequence[Item],
    refuse: Callable[[Item, ErrorCode, str], Outcome],
    ask: Callable[[tuple[Item, ...]], Awaitable[Sequence[Outcome]]],
) -> Iterator[Outcome]:
    """Ask the controller in parts of `ASKED_MAX` items; yields one outcome per item, in order. After an error of one
    part, the outcome of its items and of all later ones is that error."""
    failed: list[KafkaError] = []

    async def ask_for(start: int) -> Sequence[Outcome]:
        some = tuple(items[start : start + ASKED_MAX])  # rule A48/the-controller-is-asked-for-all-at-once
        if not failed:
            try:
                return await ask(some)
            except KafkaError as error:
                failed.append(error)
        return [refuse(item, failed[0].code, failed[0].message) for item in some]

    return chain.from_iterable(await connection.each(ask_for, range(0, len(items), ASKED_MAX)))


async def each_item(
    items: Sequence[Item],
    refusals: Sequence[Refusal | None],
    refuse: Callable[[Item, ErrorCode, str], Outcome],
    ask: Callable[[tuple[Item, ...]], Awaitable[Sequence[Outcome]]],
    *,
    connection: Connection,
) -> list[Outcome]:
    """Ask the controller about the items without a refusal; returns one outcome per item, in order."""
    asked = tuple(item for item, refusal in zip(items, refusals, strict=True) if refusal is None)
    following = await ask_in_parts(connection, asked, refuse, ask)

    def outcome_of(item_and_refusal: tuple[Item, Refusal | None]) -> Outcome:
        item, refusal = item_and_refusal
        return next(following) if refusal is None else refuse(item, *refusal)

    return await connection.stepped(each(outcome_of, zip(items, refusals, strict=True)))


async def each_paid_item(
    items: Sequence[Item],
    refusals: Sequence[Refusal | None],
    refuse: Callable[[Item, ErrorCode, str], Outcome],
    ask: Callable[[tuple[Item, ...]], Awaitable[Sequence[Outcome]]],
    price: Price[Item, Outcome],
    *,
    connection: Connection,
) -> list[Outcome]:
    """As `each_item`, charging each item's expected cost before the controller is asked, and correcting it after."""
    charge, stepped = price.charge, connection.stepped

    def admit(item_and_refusal: tuple[Item, Refusal | None]) -> tuple[int, Refusal | None]:
        item, refusal = item_and_refusal
        cost = price.expected(item) if refusal is None else 0
        return cost, refusal if charge.admits(cost) else THROTTLED

    def correct(outcome: Outcome, cost: int, refusal: Refusal | None) -> None:
        if refusal is None:
            charge.correct(price.paid(outcome, cost) - cost)  # rule A21/what-failed-is-paid-for

    with charge:
        admitted = await stepped(each(admit, zip(items, refusals, strict=True)))
        refusals = [refusal for _, refusal in admitted]
        outcomes = await each_item(items, refusals, refuse, ask, connection=connection)
        pairs = zip(outcomes, admitted, strict=True)
        await stepped(each(lambda pair: correct(pair[0], *pair[1]), pairs))
    return outcomes
