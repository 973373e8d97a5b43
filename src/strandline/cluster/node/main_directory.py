"""The main log directory of a node: the one with its metadata, at any position in `log.dirs`.

A directory is recognized by its content, not by its position (rule B29). The main one contains what exists once per
node: the metadata log, the quorum's promise (its vote), the placement of replicas, and the ids of its processes. If the
first of the list were the main one, then another order of the list, or a new disk in front, would make a node without
metadata: it would vote a second time, and take every replica for a stray.

| directories that hold metadata or a promise | that were formatted as a main one | the node                         |
|---------------------------------------------|-----------------------------------|----------------------------------|
| one                                         | any                               | starts from that one             |
| none                                        | one                               | starts from that one: it is new  |
| none                                        | none                              | refuses: the main one is missing |
| several, or none                            | several                           | refuses: it cannot tell          |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import structlog

from strandline.cluster.node.config import NodeConfig
from strandline.controller.quorum.quorum import DIRECTORY
from strandline.controller.quorum.state_file import PROMISE, StateFile
from strandline.log.checkpoints import META_PROPERTIES
from strandline.log.disk import Disk, DiskError
from strandline.log.log_dir import read_meta_properties
from strandline.log.rewriting import AWAY
from strandline.proto.errors import ConfigError, CorruptLogError
from strandline.proto.ids import NodeId
from strandline.proto.marks import mark

log = structlog.get_logger("strandline.node")

INITIAL_CONTROLLERS = "initial-controllers"
"""Name of the file with the voters, in the form of `controller.quorum.voters`; only main directories are formatted with
it."""


def with_main_in_front(config: NodeConfig, disks: Mapping[str, Disk]) -> NodeConfig:
    """Return the configuration with the main directory first in `log.dirs`; unchanged if no directory is the main one.

    Args:
        disks: disk of each directory in `log.dirs`, by path.

    Raises:
        ConfigError: several directories look like the main one.
    """
    main = _main_of(config, disks)
    return config if main is None else _in_front(config, main)


def as_it_is_formatted(config: NodeConfig, disks: Mapping[str, Disk]) -> NodeConfig:
    """Return the configuration for formatting, as `with_main_in_front` does; if no directory is the main one yet, the
    first that is not formatted is moved to the front."""
    unformatted = (path for path in config.log_dirs if not _holds(disks[path], path, META_PROPERTIES))
    # rule B29/a-new-disk-in-front-becomes-the-main-one, rule B29/a-replaced-main-directory-is-a-further-one
    return _in_front(config, _main_of(config, disks) or next(unformatted, config.data_dir))


def as_it_starts(config: NodeConfig, disks: Mapping[str, Disk]) -> NodeConfig:
    """Return the configuration for a start, or for a change of the node's metadata, as `with_main_in_front` does.

    Raises:
        ConfigError: several directories look like the main one; or directories are formatted and none is the main one.
    """
    found = with_main_in_front(config, disks)  # rule B29/the-first-of-log-dirs-is-the-main-one
    if found is not config:
        mark("main-directory-by-content")
        what = "log.dirs names another directory in front of the one with this node's metadata, which counts"
        log.warning(what, main=found.data_dir, first=config.data_dir)
    formatted = [path for path in config.log_dirs if _holds(disks[path], path, META_PROPERTIES)]
    # rule B29/a-node-starts-without-its-metadata
    if formatted and not _holds(disks[found.data_dir], found.data_dir, INITIAL_CONTROLLERS, DIRECTORY, PROMISE):
        expected = (
            f"the directory with this node's metadata among them: {', '.join(formatted)} was formatted as a further "
            "one. Name all directories that the node had, in any order, and mount their disks. If the one with the "
            "metadata is lost for good: name a new one in its place, and run `strandline format` (for a controller "
            "with --without-vote)"
        )
        raise ConfigError("log.dirs", ",".join(config.log_dirs), expected)
    return found


def _in_front(config: NodeConfig, path: str) -> NodeConfig:
    if path == config.data_dir:
        return config
    paths = [path, *(other for other in config.log_dirs if other != path)]
    return NodeConfig({**config.given, "log.dirs": ",".join(paths)}, path=config.path)


def _main_of(config: NodeConfig, disks: Mapping[str, Disk]) -> str | None:
    used = _holding(config.log_dirs, disks, DIRECTORY, PROMISE)
    found = used or _holding(config.log_dirs, disks, INITIAL_CONTROLLERS)  # rule B29/a-promise-is-no-metadata
    if len(found) < 2:  # rule B29/of-two-with-metadata-the-first-counts
        return found[0] if found else None
    for path in found:
        owner = _owner(disks[path], path)
        if owner not in (None, config.node):
            expected = f"directories of this node alone: {path} is one of node {owner}, this is node {config.node_id}"
            raise ConfigError("log.dirs", ",".join(config.log_dirs), expected)
    told = "; ".join(f"{path} {_reach(disks[path], path)}" for path in found)
    expected = (
        f"one directory with the node's metadata, and these have some each: {told}. Find out which one the other nodes "
        "know (`strandline quorum describe` shows the directory ids of voters, `meta.properties` that of a directory), "
        "and take the others out of log.dirs: move them away, do not delete them before the node has caught up"
    )
    raise ConfigError("log.dirs", ",".join(config.log_dirs), expected)


def _holding(paths: Iterable[str], disks: Mapping[str, Disk], *names: str) -> list[str]:
    return [path for path in paths if _holds(disks[path], path, *names)]


def _holds(disk: Disk, path: str, *names: str) -> bool:
    """True if the directory contains one of the files, under its name or the one that an interrupted start gave it. A
    directory whose disk fails counts as empty."""
    try:
        return any(disk.exists(f"{path}/{name}") or disk.exists(f"{path}/{name}{AWAY}") for name in names)
    except DiskError:
        return False


def _owner(disk: Disk, path: str) -> NodeId | None:
    """Node id in the directory's meta.properties; None: it cannot be read."""
    try:
        return read_meta_properties(disk, path).node_id
    except (ConfigError, CorruptLogError, DiskError):
        return None


def _reach(disk: Disk, path: str) -> str:
    """Phrase that tells how far a directory's metadata reach, for an error message."""
    try:
        found = StateFile(disk, path, PROMISE).read() or StateFile(disk, f"{path}/{DIRECTORY}").read()
    except (CorruptLogError, DiskError):
        found = None
    return "of unknown reach" if found is None else f"up to offset {found.held.offset}, epoch {found.election.epoch}"
