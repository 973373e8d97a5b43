"""The volume of a node in a container: formatted when it is empty, held against the cluster's id when it is not."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from strandline.cluster.node.config import NodeConfig
from strandline.cluster.node.container.settings import CLUSTER_ID, FORMAT
from strandline.cluster.node.format import format_directory
from strandline.log.checkpoints import META_PROPERTIES
from strandline.log.real_disk import RealDisk
from strandline.proto.errors import ConfigError
from strandline.proto.system import system_rng


def prepare(config: NodeConfig, environment: Mapping[str, str]) -> None:
    """Make `log.dirs` formatted directories of this node and cluster. Idempotent.

    Formatting by itself is what `strandline node` never does, for a controller that lost its volume would vote twice in
    one epoch (schedule 26). Here the operator asks for it with a cluster id, and ends it with STRANDLINE_FORMAT=never.

    Raises:
        ConfigError: it is another node's or another cluster's; it is not formatted, and must not be, or has no id.
        DiskError, OSError: the volume cannot be written.
    """
    policy = environment.get(FORMAT, "missing")
    if policy not in ("missing", "never"):
        raise ConfigError(FORMAT, policy, "missing or never")
    cluster_id = environment.get(CLUSTER_ID, "")
    disk = RealDisk()
    if disk.exists(f"{config.data_dir}/{META_PROPERTIES}"):
        if not cluster_id:
            return  # the node holds the directory against its own id
    elif policy == "never":
        expected = f"a formatted volume; {config.data_dir} is not formatted. Is the right volume mounted there?"
        raise ConfigError(FORMAT, policy, expected)
    elif not cluster_id:
        raise ConfigError(CLUSTER_ID, "", f"the same id for all nodes, to format {config.data_dir} with")
    if policy == "never":  # another directory that is not formatted stays so, and is offline
        config = NodeConfig({**config.given, "log.dirs": config.data_dir}, path=config.path)
    made = format_directory(disk, config, cluster_id=cluster_id, rng=system_rng(), ignore_formatted=True)
    if not made.already:
        print(f"strandline: formatted {config.data_dir} for cluster {cluster_id}", file=sys.stderr)  # noqa: T201
