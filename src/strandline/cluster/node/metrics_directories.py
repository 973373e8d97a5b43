"""What /metrics tells of each log directory of a broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from strandline.log.disk import DiskError
from strandline.replica.manager import ReplicaManager

if TYPE_CHECKING:
    from prometheus_client.core import Metric


def of_directories(replicas: ReplicaManager) -> Iterator[Metric]:
    """How the log directories of a broker are."""
    from prometheus_client.core import GaugeMetricFamily

    offline = replicas.log_dirs.offline
    yield GaugeMetricFamily(
        "kafka_log_logmanager_offlinelogdirectorycount",
        "Log directories of this broker that are offline, with the replicas in them.",
        value=len(offline),
    )
    yield GaugeMetricFamily(
        "strandline_replica_moves", "Replicas on their way to another log directory.", value=len(replicas.mover.moves)
    )
    labels = ("log_directory",)
    is_offline = GaugeMetricFamily(
        "kafka_log_logmanager_logdirectoryoffline", "1 for a log directory that is offline, else 0.", labels=labels
    )
    full = GaugeMetricFamily(
        "strandline_log_dir_full", "1 while a log directory has no room and takes no writes, else 0.", labels=labels
    )
    held = GaugeMetricFamily("strandline_log_dir_replicas", "Replicas in a log directory.", labels=labels)
    free = GaugeMetricFamily("strandline_log_dir_free_bytes", "Room left on a log directory's disk.", labels=labels)
    for path in offline:
        is_offline.add_metric((path,), 1)
    for directory in replicas.directories.usable:
        names = (directory.path,)
        is_offline.add_metric(names, 0)
        full.add_metric(names, int(directory.room.full))
        held.add_metric(names, len(directory.log_dir.logs))
        try:
            free.add_metric(names, directory.log_dir.disk.free_bytes(directory.path))
        except DiskError:
            continue  # who reads and writes there meets it too, and knows what to do
    yield from (is_offline, full, held, free)
