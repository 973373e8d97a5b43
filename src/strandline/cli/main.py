"""`strandline`: the entry point of the program."""

from __future__ import annotations

import sys

import click

from strandline.cli.lazy import LazyGroup

_HERE = "strandline.cli"

COMMANDS = {
    "acl": f"{_HERE}.acls:acl",
    "audit": f"{_HERE}.audit:audit",
    "bench": f"{_HERE}.bench:bench",
    "broker": f"{_HERE}.brokers:broker",
    "certs": f"{_HERE}.certs:certs",
    "cluster": f"{_HERE}.cluster:cluster",
    "completion": f"{_HERE}.completion:completion",
    "config": f"{_HERE}.configs:config",
    "consume": f"{_HERE}.consume:consume",
    "dead-letters": f"{_HERE}.dead_letters:dead_letters",
    "dev": f"{_HERE}.dev:dev",
    "doctor": f"{_HERE}.doctor:doctor",
    "format": f"{_HERE}.format:format_",
    "group": f"{_HERE}.groups:group",
    "lake": f"{_HERE}.lake:lake",
    "log": f"{_HERE}.log:log",
    "metadata": f"{_HERE}.metadata:metadata",
    "node": f"{_HERE}.node:node",
    "produce": f"{_HERE}.produce:produce",
    "profile": f"{_HERE}.profiles:profile",
    "quorum": f"{_HERE}.quorum:quorum",
    "quota": f"{_HERE}.quotas:quota",
    "spark": f"{_HERE}.spark:spark",
    "tier": f"{_HERE}.tier:tier",
    "topic": f"{_HERE}.topics:topic",
    "trace": f"{_HERE}.trace:trace",
    "transaction": f"{_HERE}.transactions:transaction",
    "upgrade": f"{_HERE}.upgrade:upgrade",
    "user": f"{_HERE}.users:user",
    "why": f"{_HERE}.why:why",
}


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Every command has --help with examples. docs/cli.md has them all on one page.",
)
@click.version_option(package_name="strandline", prog_name="strandline")
def main() -> None:
    """A replicated commit log that Kafka clients can use as it is.

    \b
    The first five minutes:
      strandline dev                                  three nodes on this machine; Ctrl-C stops them
      strandline topic create orders --partitions 3   in a second terminal
      echo hello | strandline produce orders
      strandline consume orders --from-beginning
      strandline doctor                               what could lose data, and what it would lose

    \b
    Exit codes: 0 done, 1 refused or failed, 2 the command line is wrong, 3 no broker answers,
    130 interrupted (Ctrl-C).
    """


if __name__ == "__main__":
    sys.exit(main())
