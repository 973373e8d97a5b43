"""The options of `kafka-acls.sh` that `strandline acl` takes too, and the entries and filters that they mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import click

from strandline.proto.acls import (
    CLUSTER,
    WILDCARD,
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceKind,
    binding_fault,
)

F = TypeVar("F", bound=Callable[..., Any])

_NAMED = {
    "topics": ResourceKind.TOPIC,
    "groups": ResourceKind.GROUP,
    "transactional_ids": ResourceKind.TRANSACTIONAL_ID,
    "delegation_tokens": ResourceKind.DELEGATION_TOKEN,
    "user_principals": ResourceKind.USER,
}
_OPTION = {
    "topics": "--topic",
    "groups": "--group",
    "transactional_ids": "--transactional-id",
    "delegation_tokens": "--delegation-token",
    "user_principals": "--user-principal",
}
_PATTERNS = ("literal", "prefixed", "match", "any")
_PRODUCER = (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE)
_CONSUMER = (Operation.READ, Operation.DESCRIBE)
_TRANSACTION = (Operation.WRITE, Operation.DESCRIBE)


def _together(command: F, *options: Callable[[F], F]) -> F:
    for option in reversed(options):
        command = option(command)
    return command


def resource_options(command: F) -> F:
    """Add the options that name resources: ``--topic`` and so on, ``--cluster``, ``--resource-pattern-type``."""
    named = [
        click.option(
            option, name, multiple=True, metavar="NAME",
            help=f"A {_NAMED[name].name.lower().replace('_', ' ')}, * for each; repeatable.",
        )
        for name, option in _OPTION.items()
    ]  # fmt: skip
    cluster = click.option("--cluster", is_flag=True, help="The cluster itself.")
    pattern = click.option(
        "--resource-pattern-type", "pattern", type=click.Choice(_PATTERNS, case_sensitive=False), default=None,
        help="literal (the default): the name itself. prefixed: names that begin so. To find entries also any, and "
        "match: all that count for a name.",
    )  # fmt: skip
    return _together(command, *named, cluster, pattern)


def who_options(command: F) -> F:
    """Add the options that name principals, hosts and operations: Kafka's ``--allow-principal`` and so on."""

    def many(option: str, name: str, sentence: str) -> Callable[[F], F]:
        return click.option(option, name, multiple=True, help=sentence)

    def flag(option: str, sentence: str) -> Callable[[F], F]:
        return click.option(option, is_flag=True, help=sentence)

    return _together(
        command,
        many("--allow-principal", "allow_principals", "Who may: User:alice, or User:* for everybody; repeatable."),
        many("--deny-principal", "deny_principals", "Who may not, whatever else allows it; repeatable."),
        many("--allow-host", "allow_hosts", "The address from which it may; default: any; repeatable."),
        many("--deny-host", "deny_hosts", "The address from which it may not; default: any; repeatable."),
        many("--operation", "operations", "What: read, write, describe, ...; default: all; repeatable."),
        flag("--producer", "What a producer needs: write, describe and create of the topics."),
        flag("--consumer", "What a consumer needs: read and describe of the topics, read of the groups."),
        flag("--idempotent", "With --producer: idempotent_write of the cluster. Write of a topic is enough here."),
    )


def principal_of(text: str) -> str:
    """`alice` is `User:alice`."""
    return text if ":" in text else f"User:{text}"


def _pattern(options: Mapping[str, Any], default: PatternType) -> PatternType:
    text = options["pattern"]
    return default if text is None else PatternType[text.upper()]


def _resources(options: Mapping[str, Any]) -> Iterator[tuple[ResourceKind, str]]:
    for option, kind in _NAMED.items():
        for name in options[option]:
            yield kind, name
    if options["cluster"]:
        yield CLUSTER


def filters_of(options: Mapping[str, Any]) -> list[AclFilter]:
    """Filters for the entries meant: those of the resources named (none named: all), for the principals named (none
    named: all)."""
    pattern = _pattern(options, PatternType.LITERAL)
    principals: list[str | None] = [principal_of(one) for one in options.get("principals", ())]
    principals = principals or [None]
    operations = [_operation(one) for one in options.get("operations", ())] or [Operation.ANY]
    resources = list(_resources(options))
    filters = [
        AclFilter(kind, name, pattern, principal, operation=operation)
        for kind, name in resources
        for principal in principals
        for operation in operations
    ]
    if resources:
        return filters
    pattern = PatternType.ANY if options["pattern"] is None else pattern
    return [AclFilter(pattern=pattern, principal=one, operation=what) for one in principals for what in operations]


def entries_of(options: Mapping[str, Any]) -> list[AclBinding]:
    """The entries that the options name. Raises click.UsageError where they name none, or one that cannot be."""
    pattern = _pattern(options, PatternType.LITERAL)
    if pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise click.UsageError("an entry is literal or prefixed: match and any find entries")
    who = [
        (principal_of(principal), host, permission)
        for principals, hosts, permission in (
            ("allow_principals", "allow_hosts", Permission.ALLOW),
            ("deny_principals", "deny_hosts", Permission.DENY),
        )
        for principal in options[principals]
        for host in options[hosts] or (WILDCARD,)
    ]
    if not who:
        raise click.UsageError("who? give --allow-principal or --deny-principal")
    what = list(dict.fromkeys(_what(options)))
    if not what:
        raise click.UsageError("on what? give --topic, --group, --cluster, ...")
    entries = [
        AclBinding(
            kind,
            name,
            PatternType.LITERAL if kind is ResourceKind.CLUSTER else pattern,
            one,
            host,
            operation,
            permission,
        )
        for kind, name, operation in what
        for one, host, permission in who
    ]
    for entry in entries:
        fault = binding_fault(entry)
        if fault:
            raise click.UsageError(f"{entry}: {fault}")
    return entries


def _what(options: Mapping[str, Any]) -> Iterator[tuple[ResourceKind, str, Operation]]:
    handy = options["producer"] or options["consumer"]
    if handy:
        if options["operations"]:
            raise click.UsageError("--producer and --consumer say which operations: leave --operation out")
        yield from _handy(options)
        return
    operations = [_operation(one) for one in options["operations"]] or [Operation.ALL]
    for kind, name in _resources(options):
        for operation in operations:
            yield kind, name, operation


def _handy(options: Mapping[str, Any]) -> Iterator[tuple[ResourceKind, str, Operation]]:
    if not options["topics"]:
        raise click.UsageError("--producer and --consumer need a --topic")
    if options["consumer"] and not options["groups"]:
        raise click.UsageError("--consumer needs a --group")
    of_topics = (_PRODUCER if options["producer"] else ()) + (_CONSUMER if options["consumer"] else ())
    for name in options["topics"]:
        yield from ((ResourceKind.TOPIC, name, operation) for operation in of_topics)
    if options["consumer"]:
        yield from ((ResourceKind.GROUP, name, Operation.READ) for name in options["groups"])
    if options["producer"]:
        for name in options["transactional_ids"]:
            yield from ((ResourceKind.TRANSACTIONAL_ID, name, operation) for operation in _TRANSACTION)
        if options["idempotent"]:
            yield *CLUSTER, Operation.IDEMPOTENT_WRITE


def _operation(text: str) -> Operation:
    """Kafka's names in any case, with - or _ (and as kafka-acls.sh writes them: DescribeConfigs)."""
    plain = text.lower().replace("-", "").replace("_", "")
    for operation in Operation:
        if operation > Operation.ANY and operation.name.lower().replace("_", "") == plain:
            return operation
    names = ", ".join(one.name.lower() for one in Operation if one > Operation.ANY)
    raise click.UsageError(f"there is no operation {text!r}; there are {names}")
