"""Settings of a node in a container: STRANDLINE_ variables, and every one of them must mean something.

`strandline node` overlooks a variable that resembles no setting, for it may be another program's. In a container the
whole environment is written for the node, and a misspelt variable would be a default that nobody chose.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Mapping, Sequence

from strandline.cluster.node.config import NODE_SETTINGS, NodeConfig
from strandline.cluster.node.config_values import ENVIRONMENT_PREFIX, environment_name, parse_overrides
from strandline.controller.metadata.topic_configs import BROKER_CONFIGS
from strandline.proto.errors import ConfigError

CLUSTER_ID = f"{ENVIRONMENT_PREFIX}CLUSTER_ID"
"""The id that an unformatted volume is formatted with; a formatted one of another cluster is refused."""

FORMAT = f"{ENVIRONMENT_PREFIX}FORMAT"
"""`missing` (the default) formats a volume that is not formatted; `never` refuses it."""

BOOTSTRAP = f"{ENVIRONMENT_PREFIX}BOOTSTRAP"
"""Not read by the node: it lets `strandline topic list` and its kin find the cluster from inside a container."""

OTHER_VARIABLES = (CLUSTER_ID, FORMAT, BOOTSTRAP)

_SERVICE_LINK = re.compile(r"STRANDLINE(_\w+)?_(SERVICE_(HOST|PORT)(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")
"""What Kubernetes puts into every pod beside a service whose name begins with strandline; not meant for the node."""


def load(arguments: Sequence[str], environment: Mapping[str, str]) -> NodeConfig:
    """The settings from a file (``--config``), the environment and ``-X key=value``, later ones winning.

    Raises:
        ConfigError: a setting is wrong, or a STRANDLINE_ variable names none.
    """
    parser = argparse.ArgumentParser("node", description="Run a node as process 1 of a container.")
    parser.add_argument("-c", "--config", metavar="FILE", help="settings that the environment does not give")
    parser.add_argument("-X", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args(arguments)
    refuse_unknown(environment)
    return NodeConfig.load(options.config, parse_overrides(options.overrides), environment)


def refuse_unknown(environment: Mapping[str, str]) -> None:
    """Raise ConfigError for the first STRANDLINE_ variable, by name, that nobody reads."""
    known = [*(environment_name(name) for name in (*NODE_SETTINGS, *BROKER_CONFIGS)), *OTHER_VARIABLES]
    for variable in sorted(environment):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in known or _SERVICE_LINK.fullmatch(variable):
            continue
        near = difflib.get_close_matches(variable, known, n=2, cutoff=0.75)
        hint = f"did you mean {' or '.join(near)}?" if near else "docs/configuration.md lists the settings"
        raise ConfigError(variable, environment[variable], f"no setting has this name; {hint}")
