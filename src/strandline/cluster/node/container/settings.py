"""Settings and volume of a node in a container. Every STRANDLINE_ variable must be a known one. The volume is formatted
if it is empty; otherwise its cluster id is checked.

`strandline node` ignores a variable that resembles no setting, as it may be another program's. In a container the whole
environment is written for the node, and a misspelt variable would silently leave a default in effect.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Mapping, Sequence

from strandline.cluster.node.config import NodeConfig
from strandline.cluster.node.config_values import ENVIRONMENT_PREFIX, environment_name, parse_overrides
from strandline.cluster.node.format import format_directory
from strandline.cluster.node.main_directory import with_main_in_front
from strandline.controller.metadata.settings import BROKER_SETTINGS
from strandline.log.checkpoints import META_PROPERTIES
from strandline.log.real_disk import RealDisk
from strandline.proto.errors import ConfigError
from strandline.proto.system import system_rng

CLUSTER_ID = f"{ENVIRONMENT_PREFIX}CLUSTER_ID"
"""Variable with the cluster id: an unformatted volume is formatted with it; one of another cluster is refused."""

FORMAT = f"{ENVIRONMENT_PREFIX}FORMAT"
"""Variable with the policy for an unformatted volume: `missing` (the default) formats it, `without-vote` formats it for
a controller without a vote, `never` refuses it."""

BOOTSTRAP = f"{ENVIRONMENT_PREFIX}BOOTSTRAP"
"""Variable with the cluster's addresses for commands such as `strandline topic list`; the node does not read it."""

OTHER_VARIABLES = (CLUSTER_ID, FORMAT, BOOTSTRAP)

_SERVICE_LINK = re.compile(r"STRANDLINE(_\w+)?_(SERVICE_(HOST|PORT)(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")
"""Variables that Kubernetes puts into every pod beside a service whose name begins with strandline; not meant for
the node."""


def load(arguments: Sequence[str], environment: Mapping[str, str]) -> NodeConfig:
    """Read the settings from a file (``--config``), the environment and ``-X key=value``; later ones take priority.

    Raises:
        ConfigError: a setting is invalid, or a STRANDLINE_ variable names no setting.
    """
    parser = argparse.ArgumentParser("node", description="Run a node as process 1 of a container.")
    parser.add_argument("-c", "--config", metavar="FILE", help="settings that the environment does not give")
    parser.add_argument("-X", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args(arguments)
    refuse_unknown(environment)
    return NodeConfig.load(options.config, parse_overrides(options.overrides), environment)


def refuse_unknown(environment: Mapping[str, str]) -> None:
    """Raise ConfigError for the first STRANDLINE_ variable, by name, that is not a known one."""
    known = [*(environment_name(name) for name in (*NodeConfig.rows, *BROKER_SETTINGS)), *OTHER_VARIABLES]
    for variable in sorted(environment):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in known or _SERVICE_LINK.fullmatch(variable):
            continue
        near = difflib.get_close_matches(variable, known, n=2, cutoff=0.75)
        hint = f"did you mean {' or '.join(near)}?" if near else "docs/configuration.md lists the settings"
        raise ConfigError(variable, environment[variable], f"no setting has this name; {hint}")


def prepare(config: NodeConfig, environment: Mapping[str, str]) -> None:
    """Format the directories in `log.dirs` that are not formatted yet, for this node and cluster. Idempotent.

    `strandline node` never formats by itself, as a controller that lost its volume would vote twice in one epoch
    (schedule 26). Here the operator asks for it by giving a cluster id, and forbids it by STRANDLINE_FORMAT=never. With
    STRANDLINE_FORMAT=without-vote the new volume of such a controller has no vote until `quorum restore-vote`.

    Raises:
        ConfigError: the volume is another node's or another cluster's; or it is not formatted, and the policy forbids
            formatting or no cluster id is given.
        DiskError, OSError: the volume cannot be written.
    """
    policy = environment.get(FORMAT, "missing")
    if policy not in ("missing", "without-vote", "never"):
        raise ConfigError(FORMAT, policy, "missing, without-vote or never")
    cluster_id = environment.get(CLUSTER_ID, "")
    disk = RealDisk()
    config = with_main_in_front(config, dict.fromkeys(config.log_dirs, disk))
    formatted = disk.exists(f"{config.data_dir}/{META_PROPERTIES}")
    if formatted:
        if not cluster_id:
            return  # the node checks that the directory is its own
    elif policy == "never":
        expected = f"a formatted volume; {config.data_dir} is not formatted. Is the right volume mounted there?"
        raise ConfigError(FORMAT, policy, expected)
    elif not cluster_id:
        raise ConfigError(CLUSTER_ID, "", f"the same id for all nodes, to format {config.data_dir} with")
    if policy == "never":  # unformatted directories other than the main one are not formatted, and are offline
        config = NodeConfig({**config.given, "log.dirs": config.data_dir}, path=config.path)
    made = format_directory(
        disk, config, cluster_id=cluster_id, rng=system_rng(), ignore_formatted=True,
        without_vote=policy == "without-vote" and not formatted,
    )  # fmt: skip
    if not made.already:
        print(f"strandline: formatted {made.path} for cluster {cluster_id}", file=sys.stderr)  # noqa: T201
