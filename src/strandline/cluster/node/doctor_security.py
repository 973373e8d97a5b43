"""Rules of `strandline doctor` on security: what unauthorized parties may read or change, and by which setting.

A listener on loopback, which only programs of the same machine can reach, is no finding.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from strandline.cluster.node.authorization import OpenDoor, anonymous_door, http_door, internal_door, open_doors
from strandline.cluster.node.config import NodeConfig
from strandline.cluster.node.config_security import tls_settings
from strandline.cluster.node.config_values import Listener
from strandline.cluster.node.doctor import NO_EFFECT, OPEN, Finding
from strandline.cluster.node.settings import ENABLED, INTERNAL, PLAINTEXT, SASL_PLAINTEXT, SSL
from strandline.cluster.security.certificates import EXPIRES_SOON_S, Expiry, expiries
from strandline.cluster.security.sasl import OAUTHBEARER, PLAIN
from strandline.proto.ids import is_loopback
from strandline.proto.secrets import is_secret
from strandline.proto.settings import split_list

_UNBOUNDED = 2**31 - 1

_OTHERS_READ = 0o004
_OTHERS_ENTER = 0o005
"""Bits of a file mode for users outside the group. Access by the group is no finding: it is the node's own, and secrets
that the node may read but not change have owner and mode `root:strandline 0640`."""

ANONYMOUS = "User:ANONYMOUS"


def judge_security(config: NodeConfig, now_s: float) -> Iterator[Finding]:
    """Findings on the security of one node's file.

    Args:
        now_s: seconds since the Unix epoch, to find certificates that expire soon.
    """
    where = config.path or f"node {config.node_id}"
    reached = [listener for listener in config.client_listeners if not is_loopback(listener.endpoint.host)]
    for listener in reached:
        yield from _of_client_listener(where, config, listener)
    yield from _of_internal(where, config)
    yield from _of_http(where, config)
    if config.is_broker:
        yield from _of_authorizer(where, config, reached)
        yield from _of_sessions(where, config, reached)
    for door in open_doors(config):
        if not door.has_effect:
            yield Finding(where, door.setting, door.lets, door.remedy, NO_EFFECT)
    yield from _of_files(where, config)
    yield from _of_certificates(where, config, now_s)


def _of_client_listener(where: str, config: NodeConfig, listener: Listener) -> Iterator[Finding]:
    name, protocol = listener.name, config.protocol(listener.name)
    text = f"{name}://{listener.endpoint} ({protocol})"
    if protocol in (PLAINTEXT, SASL_PLAINTEXT):
        in_clear = {PLAIN, OAUTHBEARER} & set(split_list(config.of_listener(name)[ENABLED]))
        secrets = "passwords or tokens, " if protocol == SASL_PLAINTEXT and in_clear else ""
        yield Finding(
            where,
            f"{text}, without TLS",
            f"whoever is on the way reads {secrets}every record, and can change it",
            f"{name}:{'SSL' if protocol == PLAINTEXT else 'SASL_SSL'} in listener.security.protocol.map",
            OPEN,
        )
    if protocol == PLAINTEXT or (protocol == SSL and config.of_listener(name)["ssl.client.auth"] != "required"):
        yield Finding(
            where,
            f"{text}, without authentication",
            f"whoever reaches the port comes in, as {ANONYMOUS}",
            f"{name}:SASL_SSL in listener.security.protocol.map, or "
            f"listener.name.{name.lower()}.ssl.client.auth=required with SSL",
            OPEN,
        )


def _of_internal(where: str, config: NodeConfig) -> Iterator[Finding]:
    if not is_loopback(config.internal.host):
        yield from _said(where, internal_door(config))
    if config.protocol(INTERNAL) == SSL and not config.of_listener(INTERNAL)["ssl.endpoint.identification.algorithm"]:
        yield Finding(
            where,
            "ssl.endpoint.identification.algorithm is empty for INTERNAL",
            "whoever has a copy of one node's key is taken for that node, from whatever host",
            "leave the setting out, and let certificates name their hosts",
            OPEN,
        )


def _of_http(where: str, config: NodeConfig) -> Iterator[Finding]:
    door = http_door(config)
    yield from _said(where, door)
    if config.http is not None and config.fault_injection:
        who = "may use" if door is None else "reaches"
        yield Finding(
            where,
            "strandline.fault.injection = true",
            f"whoever {who} the HTTP listener makes requests fail and the disk slow",
            "leave it out: it is for tests",
            OPEN,
        )


def _said(where: str, door: OpenDoor | None) -> Iterator[Finding]:
    if door is not None:
        yield Finding(where, door.setting, door.lets, door.remedy, OPEN)


def _of_authorizer(where: str, config: NodeConfig, reached: list[Listener]) -> Iterator[Finding]:
    if not config.authorizer:
        if reached:
            yield Finding(
                where,
                "authorizer.class.name is not set",
                "whoever comes in reads, writes and deletes every topic, and changes every setting",
                "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer, with super.users",
                OPEN,
            )
        return
    if config.allow_everyone_if_no_acl:
        yield Finding(
            where,
            "allow.everyone.if.no.acl.found = true",
            "everybody may do everything with each topic and group that no ACL names, new ones among them",
            "leave it out, and add the ACLs that are missing: strandline acl add",
            OPEN,
        )
    if ANONYMOUS in config.super_users:
        yield Finding(
            where,
            f"super.users has {ANONYMOUS}",
            "whoever comes in without a name may do everything",
            "name the operators alone",
            OPEN,
        )
    if reached:
        yield from _said(where, anonymous_door(config))


def _of_sessions(where: str, config: NodeConfig, reached: list[Listener]) -> Iterator[Finding]:
    if config.sasl_session_ms_max == 0 and any(config.speaks_sasl(listener.name) for listener in reached):
        yield Finding(
            where,
            "connections.max.reauth.ms = 0",
            "who was removed, or whose password was changed, goes on through connections that are open",
            "connections.max.reauth.ms=3600000",
            OPEN,
        )
    if reached and config.broker.connections_max == _UNBOUNDED and config.broker.connections_per_ip_max == _UNBOUNDED:
        yield Finding(
            where,
            "max.connections and max.connections.per.ip have no bound",
            "one address may take every connection that the node has descriptors for, and others find none",
            "max.connections.per.ip=200, or what your largest client needs",
            OPEN,
        )


def _of_files(where: str, config: NodeConfig) -> Iterator[Finding]:
    """Findings on files that other users of this machine may read. Missing files are found elsewhere."""
    literal = [name for name, text in config.given.items() if is_secret(name) and text and not text.startswith("${")]
    files = [(config.path, f"{', '.join(sorted(literal))} in")] if config.path and literal else []
    for listener in config.listeners:
        if config.speaks_tls(listener.name):
            files.append((config.of_listener(listener.name)["ssl.keystore.location"], "the private key in"))
    for path, what in dict.fromkeys((path, what) for path, what in files if path):
        if _mode(path) & _OTHERS_READ:
            yield Finding(
                where,
                f"{what} {path} (mode {_mode(path):o})",
                "every account of this machine reads it",
                f"chmod o= {path}",
                OPEN,
            )
    for path in config.log_dirs:
        if _mode(path) & _OTHERS_ENTER:
            yield Finding(
                where,
                f"log.dirs = {path} (mode {_mode(path):o})",
                "every account of this machine reads every record in it",
                f"chmod o= {path}",
                OPEN,
            )


def _mode(path: str) -> int:
    try:
        return Path(path).stat().st_mode & 0o777 if path and os.path.lexists(path) else 0
    except OSError:
        return 0


def _of_certificates(where: str, config: NodeConfig, now_s: float) -> Iterator[Finding]:
    """Findings on certificates that expire soon, or that peers refuse. Raises ConfigError, like the node's start."""
    ends: set[Expiry] = set()
    unfit: dict[str, str] = {}
    for listener in config.listeners:
        if config.speaks_tls(listener.name):
            ends.update(expiries(tls_settings(config.of_listener(listener.name), listener.name), unfit.__setitem__))
    outside = "nobody: it keeps clients and nodes out"
    for setting, why in unfit.items():
        remedy = "a certificate for servers (extendedKeyUsage serverAuth)"
        yield Finding(where, f"{setting}: no server may show this certificate ({why})", outside, remedy, OPEN)
    for expiry in sorted(ends):
        if expiry.at_s - now_s <= EXPIRES_SOON_S:
            remedy = "put a new one there: a running node takes it within seconds"
            yield Finding(where, f"{expiry.setting}: {expiry.said(now_s)}", f"{outside} then", remedy, OPEN)
