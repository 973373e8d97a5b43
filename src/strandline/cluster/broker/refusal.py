"""Refusals: responses with one error for all items of a request, derived from the schemas of request and response.

A Kafka response has its error codes in one of two places: in the message itself (a refusal then has empty arrays), or
in the items of an array, one per item of the request, identified by the same name or id as in the request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, get_args, get_origin

from strandline.proto.error_codes import ErrorCode
from strandline.proto.kafka import schema
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.schema import plain_default, without_none

_NOTHING = {"string": "", "bytes": b"", "bool": False, "timedelta_i32": 0, "timedelta_i64": 0, "datetime_i64": 0}
"""Neutral value by Kafka type, for fields without a default; types not listed are numbers, and get -1 (unknown)."""

Fill = Callable[[Any, ErrorCode, str], dict[str, Any]]
"""(request or item of it, error, error message) -> response or item of it."""

NAMES: Sequence[frozenset[str]] = (
    frozenset({"name", "topic", "topic_name"}),
    frozenset({"partition", "partition_index", "partition_id"}),
    *(frozenset({name}) for name in ("topic_id", "group_id", "member_id", "group_instance_id", "key")),
    *(frozenset({name}) for name in ("resource_type", "resource_name")),
)
"""Fields that identify items; those of one set mean the same. A response repeats these fields of the request only."""


def refused(api: Api, version: int, request: Any, error: ErrorCode, message: str) -> dict[str, Any]:
    """Return the refusal of `request`, a message decoded by the schema of this version."""
    return _filler(api, version)(request, error, message)


@cache
def _filler(api: Api, version: int) -> Fill:
    return _of(schema.kind_of(api, version, "response"), schema.kind_of(api, version, "request"), is_whole=True)


def _of(told: Any, asked: Any, *, is_whole: bool = False) -> Fill:
    """Return the function that makes a message (`is_whole`) or an item of kio's class `told` from a message or item of
    class `asked`, or from a single value if that is None. Arrays that may be null are null in messages, empty in items.
    """
    values = fields(told)
    has_error = any(_kafka_type(one) == "error_code" for one in values)
    fixed: dict[str, Any] = {}
    copied: dict[str, str | None] = {}
    arrays: dict[str, tuple[str, Fill]] = {}
    for one in values:
        source = _source(one, asked)
        if _kafka_type(one) == "error_code" or one.name in ("error_message", "throttle_time"):
            continue
        item = _item(one)
        if item is not None:
            array = None if has_error or item is object else _array(item, asked)
            if array is None:
                fixed[one.name] = None if is_whole and without_none(one.type)[1] else ()
            else:
                arrays[one.name] = array
        elif source is not None or (asked is None and not copied):
            copied[one.name] = source
        else:
            fixed[one.name] = _neutral(one)
    return _fill(fixed, copied, arrays, [one.name for one in values if _kafka_type(one) == "error_code"])


def _fill(
    fixed: dict[str, Any], copied: dict[str, str | None], arrays: dict[str, tuple[str, Fill]], errors: Sequence[str]
) -> Fill:
    def fill(asked: Any, error: ErrorCode, message: str) -> dict[str, Any]:
        made = {**fixed, **dict.fromkeys(errors, error), "error_message": message or None}
        for name, source in copied.items():
            made[name] = asked if source is None else getattr(asked, source)
        for name, (source, each) in arrays.items():
            made[name] = tuple(each(item, error, message) for item in getattr(asked, source) or ())
        return made

    return fill


def _array(item: Any, asked: Any) -> tuple[str, Fill] | None:
    """Return the request's array to whose items those of the response correspond, and the function that makes them;
    None if no single array matches."""
    found = [(one.name, kind) for one in fields(asked) if (kind := _item(one)) is not None]
    named = [
        (name, kind) for name, kind in found if kind is object or any(_source(part, kind) for part in fields(item))
    ]
    if all(_item(part) or _kafka_type(part) == "error_code" or part.name == "error_message" for part in fields(item)):
        named = found  # in the order of the request, without a name
    if len(named) != 1:
        return None
    [(name, kind)] = named
    return name, _of(item, None if kind is object else kind)


def _source(one: Any, asked: Any) -> str | None:
    """Return the name of the field of class `asked` with the same meaning as this one, or None."""
    if asked is None or _item(one) is not None:
        return None
    same = next((names for names in NAMES if one.name in names), frozenset())
    return next((other.name for other in fields(asked) if other.name in same and _item(other) is None), None)


def _item(one: Any) -> Any | None:
    """Return the class of an array's items, `object` if they are single values; None if the field is not an array."""
    kind, _ = without_none(one.type)
    if get_origin(kind) is not tuple:
        return None
    inner, _ = without_none(get_args(kind)[0])
    return inner if hasattr(inner, "__flexible__") else object


def _kafka_type(one: Any) -> str:
    return str(one.metadata.get("kafka_type", ""))


def _neutral(one: Any) -> Any:
    default = plain_default(one)
    if default is not MISSING:
        return default
    _, nullable = without_none(one.type)
    if nullable:
        return None
    return _NOTHING.get(_kafka_type(one), -1)
