"""`strandline node`."""

from __future__ import annotations

import sys

import click

from strandline.cli.common import config_option, load_config, plain_errors, settings_option


@click.command()
@config_option
@settings_option
@click.option(
    "--end-with-input",
    is_flag=True,
    help="Stop when standard input ends, for programs that start nodes through a pipe.",
)
def node(config_path: str | None, overrides: dict[str, str], end_with_input: bool) -> None:
    """Run one node in the foreground until SIGTERM or Ctrl-C.

    Its directory must have been formatted (`strandline format`). Stopping is orderly: leaderships move away first; a
    second signal does not wait for that. One line of JSON on standard output says when the node is ready, the log goes
    to standard error.

    \b
    strandline node --config node-1.properties
    strandline node --config node.toml -X node.id=2 -X log.dirs=/var/lib/strandline
    STRANDLINE_NODE_ID=3 strandline node --config node.properties
    """
    from strandline.cluster.node.run_node import run

    with plain_errors():
        config = load_config(config_path, overrides)
    sys.exit(run(config, end_with_input=end_with_input))
