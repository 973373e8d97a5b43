"""Requests of many items, each of which succeeds or fails alone, be it here or at the controller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from strandline.cluster.broker.request import Action, Authorizer, RequestContext
from strandline.proto.acls import CLUSTER
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


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
            cluster = actions[index][1] == CLUSTER
            code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED if cluster else ErrorCode.TOPIC_AUTHORIZATION_FAILED
            refusals[index] = (code, "")


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
