"""Formatting of a node's data directories: writes cluster id, node id, directory id, and the first controllers.

A starting node never formats a directory: a voter whose disk was wiped and that formatted itself would vote a second
time in an epoch in which it has voted already (schedule 26). Only `strandline dev` formats by itself, and says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from uuid import UUID

from strandline.cluster.node.bootstrap import (
    ADD_SCRAM,
    FEATURE,
    first_level_records,
    scram_records,
    write_bootstrap,
)
from strandline.cluster.node.config import NodeConfig
from strandline.cluster.node.config_values import parse_voters, write_voters
from strandline.cluster.node.main_directory import INITIAL_CONTROLLERS, as_it_is_formatted, with_main_in_front
from strandline.cluster.node.settings import INTERNAL
from strandline.controller.metadata.features import FIRST_LEVEL, KRAFT_FEATURE, METADATA_FEATURE
from strandline.controller.metadata.records import MetadataRecord
from strandline.controller.quorum.api import Voter
from strandline.controller.quorum.quorum import DIRECTORY
from strandline.controller.quorum.state_file import PROMISE, Remembered, StateFile
from strandline.controller.raft.ready import ElectionState
from strandline.log.checkpoints import META_PROPERTIES, MetaProperties, encode_id
from strandline.log.disk import DirectoryLock, Disk, DiskError, read_file, write_file_durably
from strandline.log.formats import take_directory
from strandline.log.log_dir import format_log_dir, read_meta_properties
from strandline.log.rewriting import restore_names
from strandline.proto.errors import ConfigError, CorruptLogError
from strandline.proto.ids import NodeId
from strandline.proto.ports import Rng

_CLUSTER_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True)
class Formatted:
    """A formatted main directory of a node, with the result of formatting the others.

    Attributes:
        path: path of the main directory.
        voters: the first controllers.
        already: it was formatted before, and was not changed.
        others: path of each other directory of `log.dirs` -> whether it was formatted before.
    """

    path: str
    meta: MetaProperties
    voters: tuple[Voter, ...]
    already: bool
    others: Mapping[str, bool] = field(default_factory=dict)


def random_id(rng: Rng) -> UUID:
    """Return a random UUID (version 4)."""
    return UUID(int=rng.getrandbits(128), version=4)


def random_cluster_id(rng: Rng) -> str:
    """Return a cluster id like Kafka's: 16 random bytes in URL-safe base64 that do not begin with a dash."""
    while True:
        text = encode_id(random_id(rng))
        if not text.startswith("-"):
            return text


def format_directory(
    disk: Disk,
    config: NodeConfig,
    *,
    cluster_id: str,
    initial_controllers: tuple[Voter, ...] = (),
    rng: Rng,
    ignore_formatted: bool = False,
    without_vote: bool = False,
    standalone: bool = False,
    dry_run: bool = False,
    add_scram: Sequence[str] = (),
    release: str = "",
    features: Sequence[str] = (),
    disks: Mapping[str, Disk] | None = None,
) -> Formatted:
    """Format the directories in `log.dirs` of `config` for its node. Formatted ones are not changed; if all of them
    are, an error is raised. If none is the main directory yet (`main_directory`), the first new one becomes it.

    Args:
        disk: disk of the first directory.
        disks: disks of the others, by path, where they differ from `disk`.
        initial_controllers: the voters; empty: those of `controller.quorum.voters`. This node's entry may contain the
            directory id that its directory gets; otherwise a random one is chosen.
        ignore_formatted: raise no error for a directory that is formatted for this node.
        without_vote: for a controller of an existing cluster whose disk was lost: it starts as an observer under a new
            directory id, so that it cannot vote a second time, and gets its vote by a voter change. This also holds for
            a new controller that knows only bootstrap addresses and no voters.
        standalone: this controller is the only voter of a new cluster.
        dry_run: check, and write nothing.
        add_scram: users of a new cluster, in Kafka's form: SCRAM-SHA-256=[name=alice,password=...].
        release: a new cluster has the levels with which this release begins clusters; empty: the newest.
        features: levels of a new cluster, as NAME=LEVEL.

    Raises:
        ConfigError: the directory is formatted already, or for another node; voters and role contradict each other.
        DirectoryInUse: another process uses or formats the directory.
        DiskError: the disk failed.
    """
    if not _CLUSTER_ID.fullmatch(cluster_id):
        raise ConfigError("--cluster-id", cluster_id, "1 to 64 letters, digits, - and _, no - in front")
    lie_on = {path: (disks or {}).get(path, disk) for path in config.log_dirs[1:]} | {config.data_dir: disk}
    config = as_it_is_formatted(config, lie_on)
    if standalone:
        if not config.is_controller or initial_controllers:
            raise ConfigError("--standalone", config.node_id, "for a controller, without other controllers")
        initial_controllers = (Voter(config.node, None, config.advertised(INTERNAL, config.internal)),)
        features = with_kraft_version(release, features)
    disk, others = lie_on[config.data_dir], {path: lie_on[path] for path in config.log_dirs[1:]}
    already = {path: other.exists(f"{path}/{META_PROPERTIES}") for path, other in others.items()}
    for path, formatted in already.items():
        if formatted:
            _look_at(others[path], path, config.node, cluster_id, ignore_formatted=True)
    made = _format_first(
        disk,
        config,
        cluster_id=cluster_id,
        initial_controllers=initial_controllers,
        rng=rng,
        ignore_formatted=ignore_formatted or not all(already.values()),
        without_vote=without_vote,
        dry_run=dry_run,
        add_scram=add_scram,
        levels=first_level_records(release, features),
    )
    for path, other in others.items():
        if not already[path] and not dry_run:
            with _locked(other, path):
                format_log_dir(other, path, cluster_id, config.node, random_id(rng))
    return replace(made, others=already)


@contextmanager
def _locked(disk: Disk, path: str) -> Iterator[None]:
    """Create the directory if it does not exist, lock it, and restore files that an interrupted start had renamed."""
    disk.mkdir(path)
    lock = take_directory(disk, path)  # rule A3/a-directory-formatted-by-everybody
    try:
        restore_names(disk, path)
        yield
    finally:
        lock.release()


def _format_first(
    disk: Disk,
    config: NodeConfig,
    *,
    cluster_id: str,
    initial_controllers: tuple[Voter, ...],
    rng: Rng,
    ignore_formatted: bool,
    without_vote: bool,
    dry_run: bool,
    add_scram: Sequence[str],
    levels: Sequence[MetadataRecord],
) -> Formatted:
    path = config.data_dir
    voters = initial_controllers or config.quorum_voters
    if not voters and not config.quorum_bootstrap_servers:
        raise ConfigError("--initial-controllers", "", "the controllers, as id@host:port of their INTERNAL listeners")
    own = next((voter for voter in voters if voter.node_id == config.node), None)
    if voters and (own is not None) != config.is_controller:
        expected = "a controller is one of the voters, a node that is only a broker is none"
        raise ConfigError("--initial-controllers", write_voters(voters), expected)
    if without_vote and (not config.is_controller or len(voters) == 1):
        expected = "for one of several controllers; the only one, or a broker alone, has nobody to get its vote from"
        raise ConfigError("--without-vote", config.node_id, expected)
    asked, without_vote = without_vote, without_vote or (config.is_controller and not voters)
    if add_scram and (own is None or without_vote):
        expected = "for the controllers of a new cluster: users of one that runs are made by strandline user set"
        raise ConfigError(ADD_SCRAM, f"node {config.node_id}", expected)
    if levels and (own is None or without_vote):
        expected = "for the controllers of a new cluster: levels of one that runs are changed by strandline upgrade"
        raise ConfigError(FEATURE, f"node {config.node_id}", expected)
    first_records = [*levels, *scram_records(add_scram, rng)]
    if disk.exists(f"{path}/{META_PROPERTIES}"):
        formatted = _look_at(disk, path, config.node, cluster_id, ignore_formatted)
        if asked:  # otherwise it is not changed, even if it has voted before
            _take_vote(disk, path, random_id(rng), dry_run=dry_run)
        return formatted
    meta = _meta(config, cluster_id, None if without_vote else own, rng)
    if dry_run:
        return Formatted(path, meta, voters, already=False)
    with _locked(disk, path):
        if disk.exists(f"{path}/{META_PROPERTIES}"):
            return _look_at(disk, path, config.node, cluster_id, ignore_formatted)
        if without_vote:
            _take_vote(disk, path, meta.directory_id, dry_run=False)
        if first_records:
            write_bootstrap(disk, path, first_records)
        write_file_durably(disk, f"{path}/{INITIAL_CONTROLLERS}", (write_voters(voters) + "\n").encode())
        format_log_dir(disk, path, cluster_id, config.node, meta.directory_id)  # last: then it counts as formatted
    return Formatted(path, meta, voters, already=False)


def with_kraft_version(release: str, features: Sequence[str]) -> Sequence[str]:
    """Return `features` with kraft.version=1, by which voters can be added and removed, as Kafka does for clusters
    whose controllers are named at the format; unchanged if kraft.version is given, or the given level is too old."""
    named = {text.partition("=")[0]: text.partition("=")[2] for text in features}
    if release or KRAFT_FEATURE in named or named.get(METADATA_FEATURE) == str(FIRST_LEVEL):
        return features
    return (*features, f"{KRAFT_FEATURE}=1")


def _meta(config: NodeConfig, cluster_id: str, own: Voter | None, rng: Rng) -> MetaProperties:
    directory_id = own.directory_id if own is not None and own.directory_id is not None else random_id(rng)
    return MetaProperties(cluster_id, config.node, directory_id)


def take_directories(disks: Mapping[str, Disk], config: NodeConfig) -> list[DirectoryLock]:
    """Lock `log.dirs` for this process before anything in them is read, as two processes could vote twice. A directory
    other than the first whose disk fails is left out: its replicas are offline.

    Args:
        disks: disk of each directory, by path.

    Raises:
        ConfigError: the first directory does not exist (the message has the command that creates it), or one contains a
            file of a newer build; nothing has been changed in any of them.
        DirectoryInUse: another process has locked one of them.
        DiskError: the first directory cannot be locked.
    """
    disk, path = disks[config.data_dir], config.data_dir
    if not disk.exists(path):
        raise _not_formatted(config)
    locks = [take_directory(disk, path)]  # rule A3/a-directory-for-everybody
    try:
        for other in config.log_dirs[1:]:
            try:
                locks.append(take_directory(disks[other], other))
            except DiskError:
                continue  # opening it gets the same error, and reports it
        restore_names(disk, path)
    except BaseException:
        for lock in locks:
            lock.release()
        raise
    return locks


def cluster_id_of(disk: Disk, config: NodeConfig) -> str | None:
    """Return the cluster id of the main directory of `log.dirs`; None: it is not formatted. Raises DiskError."""
    path = with_main_in_front(config, dict.fromkeys(config.log_dirs, disk)).data_dir
    return read_meta_properties(disk, path).cluster_id if disk.exists(f"{path}/{META_PROPERTIES}") else None


def _not_formatted(config: NodeConfig) -> ConfigError:
    expected = f"a formatted directory is needed. To format it: {format_command(config)}"
    return ConfigError("log.dirs", config.data_dir, expected)


def _was_struck_down(disk: Disk, path: str) -> bool:
    """True if a format without a vote was interrupted here: it has left the promise file, and no node has used it."""
    try:
        found = StateFile(disk, path, PROMISE).read()
    except CorruptLogError:
        return False
    return found is not None and not found.has_vote and found.former_id is None and found.election.epoch == 0


def _take_vote(disk: Disk, path: str, directory_id: UUID, *, dry_run: bool) -> None:
    """Write the promise file of a node that has never voted and has no vote. Raises ConfigError if it took part in a
    quorum."""
    for name in (DIRECTORY, PROMISE):
        if disk.exists(f"{path}/{name}") and not (name == PROMISE and _was_struck_down(disk, path)):
            expected = "a directory that has taken no part in the quorum: move it away first, its log with it"
            raise ConfigError("--without-vote", f"{path}/{name}", expected)
    if not dry_run:
        StateFile(disk, path, PROMISE).write(Remembered(ElectionState(0), directory_id, has_vote=False))


def _look_at(disk: Disk, path: str, node_id: NodeId, cluster_id: str, ignore_formatted: bool) -> Formatted:
    meta = read_meta_properties(disk, path)
    if (meta.node_id, meta.cluster_id) != (node_id, cluster_id):
        expected = f"another directory: this one is formatted for node {meta.node_id} of cluster {meta.cluster_id}"
        raise ConfigError("log.dirs", path, expected)
    if not ignore_formatted:
        raise ConfigError("log.dirs", path, "it is formatted already; --ignore-formatted leaves it as it is")
    return Formatted(path, meta, _read_voters(disk, path), already=True)


def read_directory(disk: Disk, config: NodeConfig) -> Formatted:
    """Read the main directory, which is the first of `log.dirs` (see `main_directory`), and check it.

    Raises:
        ConfigError: it is not formatted (the message has the command that formats it), it is another node's, or it was
            formatted with other voters than the configured ones.
    """
    path = config.data_dir
    if not disk.exists(f"{path}/{META_PROPERTIES}"):
        raise _not_formatted(config)
    meta = read_meta_properties(disk, path)
    if meta.node_id != config.node:
        raise ConfigError("log.dirs", path, f"the directory of node {config.node}; this one is node {meta.node_id}'s")
    written = _read_voters(disk, path)
    voters = config.quorum_voters or written
    if not voters and not config.quorum_bootstrap_servers:
        raise ConfigError("controller.quorum.voters", "", "the controllers, as id@host:port of INTERNAL listeners")
    if written and [voter.node_id for voter in voters] != [voter.node_id for voter in written]:
        expected = f"the voters that {path} was formatted with: {write_voters(written)}"
        raise ConfigError("controller.quorum.voters", write_voters(voters), expected)
    known = {voter.node_id: voter.directory_id for voter in written}
    merged = tuple(
        Voter(voter.node_id, voter.directory_id or known.get(voter.node_id), voter.endpoint) for voter in voters
    )
    return Formatted(path, meta, merged, already=True)


def _read_voters(disk: Disk, path: str) -> tuple[Voter, ...]:
    try:
        text = read_file(disk, f"{path}/{INITIAL_CONTROLLERS}").decode()
    except FileNotFoundError:
        return ()
    return parse_voters(INITIAL_CONTROLLERS, text.strip())


def format_command(config: NodeConfig) -> str:
    """Return the command that formats this node's directory; the operator replaces `ID` by the cluster id."""
    words = ["strandline", "format", "--cluster-id", "ID"]
    if config.path is not None:
        words += ["--config", config.path]
    else:
        for name in ("node.id", "process.roles", "log.dirs"):
            if name in config.given:
                words += ["-X", f"{name}={config.given[name]}"]
    if not config.quorum_voters:
        words += ["--initial-controllers", f"{config.node_id}@{config.internal}"]
    return " ".join(words)
