"""How a cluster is born: each node's directory is formatted once, with the cluster's id and its first controllers.

A node refuses a directory that is not formatted. One that formatted itself after its disk was wiped would vote a second
time in an epoch it has voted in already (correctness rule D-26); a directory id written down for each voter keeps a
replaced disk from counting as the old one.
"""

from __future__ import annotations

import base64
from uuid import UUID

from strandline.cluster.config_setting import parse_voters, write_voters
from strandline.controller.quorum.api import Voter
from strandline.log.disk import Disk, read_file, write_file_durably
from strandline.log.log_dir import format_log_dir
from strandline.proto.errors import ConfigError
from strandline.proto.ids import NodeId
from strandline.proto.ports import Rng

VOTERS_FILE = "quorum-voters"
"""The first controllers, in the form of controller.quorum.voters with directory ids."""


def new_id(rng: Rng) -> UUID:
    """A random id for a directory, a cluster or a process."""
    return UUID(int=rng.getrandbits(128), version=4)


def new_cluster_id(rng: Rng) -> str:
    """A cluster id as Kafka writes them: 22 characters of URL-safe base 64. Never begins with a dash."""
    while True:
        text = base64.urlsafe_b64encode(new_id(rng).bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def format_node(
    disk: Disk, path: str, *, cluster_id: str, node_id: NodeId, directory_id: UUID, voters: tuple[Voter, ...]
) -> None:
    """Prepare the directory of one node. What says that it is formatted is written last.

    Raises:
        ConfigError: it is formatted already.
        DiskError: the disk failed.
    """
    disk.mkdir(path)
    if voters and not disk.exists(f"{path}/meta.properties"):
        write_file_durably(disk, f"{path}/{VOTERS_FILE}", write_voters(voters).encode())
    format_log_dir(disk, path, cluster_id, node_id, directory_id)


def read_voters(disk: Disk, path: str) -> tuple[Voter, ...]:
    """The controllers that the directory was formatted with.

    Raises:
        ConfigError: it names none.
    """
    try:
        text = read_file(disk, f"{path}/{VOTERS_FILE}").decode()
    except FileNotFoundError:
        raise ConfigError(
            "controller.quorum.voters",
            "",
            f"the controllers must be named there, or when {path} is formatted (--initial-controllers)",
        ) from None
    return parse_voters(VOTERS_FILE, text)
