"""`strandline acl`: who may do what, and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import click

from strandline.cli.acl_options import (
    entries_of,
    filters_of,
    principal_of,
    resource_options,
    who_options,
)
from strandline.cli.common import (
    CommandWrong,
    Target,
    admin_for,
    dry_run_option,
    output_option,
    print_json,
    print_table,
    target_options,
)
from strandline.cli.screen import confirm, echo
from strandline.client.types import ConfigResource
from strandline.proto.acls import (
    CLUSTER,
    OPERATIONS_OF,
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Resource,
    ResourceKind,
    described,
)

_AUTHORIZER, _SUPER_USERS, _ALLOW = "authorizer.class.name", "super.users", "allow.everyone.if.no.acl.found"

KINDS = [kind.name.lower().replace("_", "-") for kind in OPERATIONS_OF]
OPERATIONS = [one.name.lower() for one in Operation if one > Operation.ANY]


@click.group()
def acl() -> None:
    """Say who may do what, and why. Brokers ask only where authorizer.class.name is set (docs/security.md)."""


@acl.command("add")
@resource_options
@who_options
@dry_run_option
@output_option
@target_options
def add(dry_run: bool, output: str, bootstrap: str, settings: dict[str, str], **options: Any) -> None:
    """Add access control entries: principals, operations and resources, each with each. Kafka's options.

    \b
    strandline acl add --allow-principal User:alice --consumer --topic orders --group reports
    strandline acl add --allow-principal User:shop --producer --topic orders- --resource-pattern-type prefixed
    strandline acl add --deny-principal User:bob --deny-host 10.0.0.9 --operation read --topic orders --dry-run
    """
    wanted = entries_of(options)
    with admin_for(Target(bootstrap, settings)) as admin:
        there = set(admin.describe_acls())
        new = [one for one in wanted if one not in there]
        if new and not dry_run:
            admin.create_acls(new)
    if output == "json":
        print_json({"added": as_json(new), "there": as_json(one for one in wanted if one in there), "dry_run": dry_run})
        return
    for one in wanted:
        verb = "is there already" if one in there else "would be added" if dry_run else "added"
        echo(f"{verb}: {one}")


@acl.command("list")
@resource_options
@click.option("--principal", "principals", multiple=True, help="Entries for this principal alone; repeatable.")
@output_option
@target_options
def list_(output: str, bootstrap: str, settings: dict[str, str], **options: Any) -> None:
    """Show access control entries: all, or those of a resource or a principal.

    --resource-pattern-type match shows all that count for a name: prefixes and * too.

    \b
    strandline acl list
    strandline acl list --topic orders --resource-pattern-type match
    strandline acl list --principal User:alice --output json
    """
    with admin_for(Target(bootstrap, settings)) as admin:
        found = admin.describe_acls()
    filters = filters_of(options)
    shown = [one for one in found if any(wanted.fits(one) for wanted in filters)]
    if output == "json":
        print_json(as_json(shown))
    elif not shown:
        echo("no ACL fits" if found else "there are no ACLs")
    else:
        print_table(("principal", "permission", "operation", "resource", "host"), [_row(one) for one in shown])


@acl.command("remove")
@resource_options
@who_options
@click.option("-y", "--yes", "--force", "yes", is_flag=True, help="Do not ask.")
@dry_run_option
@output_option
@target_options
def remove(yes: bool, dry_run: bool, output: str, bootstrap: str, settings: dict[str, str], **options: Any) -> None:
    """Remove access control entries. Without a principal: all of the resources that are named.

    \b
    strandline acl remove --topic orders --dry-run
    strandline acl remove --allow-principal User:alice --operation read --topic orders --yes
    """
    named = options["allow_principals"] or options["deny_principals"]
    filters: Sequence[AclFilter] = [_exactly(one) for one in entries_of(options)] if named else filters_of(options)
    if filters == [AclFilter()]:
        raise click.UsageError("remove what? name a resource: --topic, --group, --cluster, ...")
    with admin_for(Target(bootstrap, settings)) as admin:
        found = [one for one in admin.describe_acls() if any(wanted.fits(one) for wanted in filters)]
        if found and not dry_run:
            if not yes:
                _confirm(found)
            admin.delete_acls([_exactly(one) for one in found])
    if output == "json":
        print_json({"removed": as_json(found), "dry_run": dry_run})
        return
    if not found:
        echo("no ACL fits: nothing to remove")
    for one in found:
        echo(f"{'would be removed' if dry_run else 'removed'}: {one}")


@acl.command("explain")
@click.argument("principal")
@click.argument("operation", type=click.Choice(OPERATIONS, case_sensitive=False))
@click.argument("kind", type=click.Choice(KINDS, case_sensitive=False))
@click.argument("name", default="")
@click.option("--host", default="", help="The address it comes from. Left out: one that no entry names.")
@output_option
@target_options
def explain(*, principal: str, operation: str, kind: str, name: str, host: str, output: str, **where: Any) -> None:
    """Say whether a principal may do something, and which entry or setting decides it.

    \b
    strandline acl explain alice read topic orders
    strandline acl explain User:bob alter cluster --host 10.0.0.9
    """
    from strandline.cluster.security.acl_rules import AclRules, Asker

    resource = _resource(kind, name)
    who, what = principal_of(principal), Operation[operation.upper()]
    with admin_for(Target(**where)) as admin:
        broker = admin.describe_cluster().nodes[0].node_id
        entries = admin.describe_configs([ConfigResource("broker", str(broker))])
        values = {one.name: one.value or "" for found in entries.values() for one in found}
        if not values.get(_AUTHORIZER):
            because, allowed = f"{_AUTHORIZER} is not set: everybody may do everything", True
        else:
            acls = admin.describe_acls(AclFilter(resource.kind, resource.name, PatternType.MATCH))
            users = [one.strip() for one in values.get(_SUPER_USERS, "").split(";")]
            rules = AclRules(acls, users, values.get(_ALLOW) == "true")
            allowed, reason = rules.decide(Asker(who, host), what, resource)
            because = f"{reason.permission.name}: {reason}" if isinstance(reason, AclBinding) else reason
    if output == "json":
        document = {"principal": who, "operation": what.name, "resource_type": resource.kind.name}
        print_json({**document, "resource": resource.name, "host": host, "allowed": allowed, "because": because})
        return
    origin = f" from {host}" if host else ""
    target = described(resource.kind, PatternType.LITERAL, resource.name)
    echo(f"{who} {'may' if allowed else 'may not'} {what.name} {target}{origin}: {because}")


def _resource(kind: str, name: str) -> Resource:
    found = ResourceKind[kind.upper().replace("-", "_")]
    if found is ResourceKind.CLUSTER:
        if name not in ("", CLUSTER.name):
            raise CommandWrong(f"the cluster is named {CLUSTER.name}, or not at all: not {name!r}")
        return CLUSTER
    if not name:
        raise click.UsageError(f"which {kind}? give its name")
    return Resource(found, name)


def _exactly(one: AclBinding) -> AclFilter:
    return AclFilter(one.kind, one.name, one.pattern, one.principal, one.host, one.operation, one.permission)


def _confirm(found: Sequence[AclBinding]) -> None:
    for one in found:
        echo(f"to be removed: {one}", err=True)
    if not confirm(f"Remove {len(found)}?", err=True):
        raise click.Abort


def as_json(bindings: Iterable[AclBinding]) -> list[dict[str, str]]:
    """Entries for programs, under Kafka's words."""
    return [
        {
            "resource_type": one.kind.name,
            "resource": one.name,
            "pattern_type": one.pattern.name,
            "principal": one.principal,
            "host": one.host,
            "operation": one.operation.name,
            "permission": one.permission.name,
        }
        for one in bindings
    ]


def _row(one: AclBinding) -> tuple[str, ...]:
    resource = described(one.kind, one.pattern, one.name)
    return one.principal, one.permission.name, one.operation.name, resource, one.host
