"""Requests of many items, each of which succeeds or fails alone, be it here or at the controller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from strandline.cluster.broker.request import Action, Authorizer, Charge, RequestContext, refusal
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


THROTTLED = ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded."
"""Of an item that its client may not have now (KIP-599), in Kafka's words."""


@dataclass(frozen=True, slots=True)
class Price(Generic[Item, Outcome]):
    """What items cost (KIP-599).

    Attributes:
        expected: partitions that an item will make or delete, as far as this broker knows; 0 for one that will fail.
        paid: what an item did make or delete, by its outcome and what was expected.
    """

    charge: Charge
    expected: Callable[[Item], int]
    paid: Callable[[Outcome, int], int]


def named_twice(keys: Sequence[object]) -> list[tuple[ErrorCode, str] | None]:
    """A refusal for each item whose key stands more than once."""
    seen: dict[object, int] = {}
    for key in keys:
        seen[key] = seen.get(key, 0) + 1
    fault = (ErrorCode.INVALID_REQUEST, "stands more than once in the request")
    return [fault if seen[key] > 1 else None for key in keys]


def deny(
    authorizer: Authorizer,
    context: RequestContext,
    refusals: list[tuple[ErrorCode, str] | None],
    actions: Sequence[Action],
) -> None:
    """Refuse the items whose action the principal may not do; one action an item."""
    for index, answer in enumerate(authorizer.authorize(context, actions)):
        if not answer:
            denied = refusal(context, *actions[index])
            refusals[index] = (denied.code, denied.message)


async def each_item(
    items: Sequence[Item],
    refusals: Sequence[tuple[ErrorCode, str] | None],
    refuse: Callable[[Item, ErrorCode, str], Outcome],
    ask: Callable[[tuple[Item, ...]], Awaitable[Sequence[Outcome]]],
) -> list[Outcome]:
    """Ask the controller about the items that nothing speaks against; one outcome an item, in order."""
    asked = tuple(item for item, refusal in zip(items, refusals, strict=True) if refusal is None)
    answers: list[Outcome] = []
    if asked:
        try:
            answers = list(await ask(asked))
        except KafkaError as error:
            answers = [refuse(item, error.code, error.message) for item in asked]
    following = iter(answers)
    return [
        next(following) if refusal is None else refuse(item, *refusal)
        for item, refusal in zip(items, refusals, strict=True)
    ]


async def each_paid_item(
    items: Sequence[Item],
    refusals: Sequence[tuple[ErrorCode, str] | None],
    refuse: Callable[[Item, ErrorCode, str], Outcome],
    ask: Callable[[tuple[Item, ...]], Awaitable[Sequence[Outcome]]],
    price: Price[Item, Outcome],
) -> list[Outcome]:
    """`each_item`, of items that cost: each is charged before it is asked for, and gets back what it did not cost."""
    charge = price.charge
    expected = [price.expected(item) if refusal is None else 0 for item, refusal in zip(items, refusals, strict=True)]
    with charge:
        admitted = [charge.admits(cost) for cost in expected]
        refusals = [refusal if fits else THROTTLED for refusal, fits in zip(refusals, admitted, strict=True)]
        outcomes = await each_item(items, refusals, refuse, ask)
        for outcome, cost, refusal in zip(outcomes, expected, refusals, strict=True):
            if refusal is None:
                charge.correct(price.paid(outcome, cost) - cost)  # rule A21/what-failed-is-paid-for
    return outcomes
