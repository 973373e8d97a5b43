"""The kinds of fault, by name."""

from __future__ import annotations

from strandline.chaos.nemesis import disks, links, metadata, processes, stores

FAULTS = {
    "stop": processes.stop,
    "stop_all": processes.stop_all,
    "kill": processes.kill,
    "kill_in_callback": processes.kill_in_callback,
    "kill_leader": processes.kill_leader,
    "kill_controller": processes.kill_controller,
    "kill_all": processes.kill_all,
    "power_cut": processes.power_cut,
    "power_cut_in_callback": processes.power_cut_in_callback,
    "power_cut_all": processes.power_cut_all,
    "power_cut_all_in_callback": processes.power_cut_all_in_callback,
    "one_stays_dead": processes.one_stays_dead,
    "pause": processes.pause,
    "rolling_restart": processes.rolling_restart,
    "wall_jump": processes.wall_jump,
    "wall_days": processes.wall_days,
    "partition": links.partition,
    "partition_one_way": links.partition_one_way,
    "isolate": links.isolate,
    "cut_off": links.cut_off,
    "swizzle": links.swizzle,
    "seesaw": links.seesaw,
    "delay": links.delay,
    "loss": links.loss,
    "late_calls": links.late_calls,
    "repeated_calls": links.repeated_calls,
    "break_connections": links.break_connections,
    "stall_connection": links.stall_connection,
    "slow_disk": disks.slow,
    "full_disk": disks.full,
    "fail_sync": disks.fail_sync,
    "hang_sync": disks.hang_sync,
    "fail_write": disks.fail_write,
    "fail_name": disks.fail_name,
    "fail_read": disks.fail_read,
    "bit_rot": disks.bit_rot,
    "rot_beside_log": disks.rot_beside_log,
    "zeroed_tail": disks.zeroed_tail,
    "damage_files": disks.damage_files,
    "lose_directory": disks.lose_directory,
    "wipe": disks.wipe,
    "wipe_ahead": disks.wipe_ahead,
    "wipe_one": disks.wipe_one,
    "unmount_one": disks.unmount_one,
    "fail_directory": disks.fail_directory,
    "lose_metadata": metadata.lose,
    "rot_metadata": metadata.rot,
    "store_away": stores.away,
    "store_slow": stores.slow,
    "store_refuses": stores.refuse,
    "store_loses_answers": stores.lose_answers,
    "store_keeps": stores.keep,
}
"""name -> injects one."""

_NODE_ALONE = (
    "stop",
    "stop_all",
    "rolling_restart",
    "full_disk",
    "fail_sync",
    "hang_sync",
    "fail_write",
    "fail_name",
    "fail_read",
    "bit_rot",
    "rot_beside_log",
    "zeroed_tail",
    "lose_directory",
)

BY_NAME_ALONE = ("seesaw", "stall_connection")
"""Never among all: they need time and options of their own (`chaos/scenario_options.py`, `SEESAW`;
`chaos/transacting/options.py`, `RACES`)."""

OF_SEVERAL = ("unmount_one", "fail_directory", "wipe_one")
"""Faults of one disk of a machine: drawn besides, where nodes have several log directories. The last destroys."""

OF_CLOCKS = ("wall_days", "wipe_ahead")
"""Drawn besides, with settings by which such a clock takes something (`chaos/scenario_options.py`, `DATED`); the last
where a disk may be replaced."""
BESIDE = ("damage_files",)
"""Drawn besides, in a share of all runs of whole nodes: what the others draw stays as it is."""

OF_CLIENTS = ("cut_off",)
"""Drawn besides, in a share of all runs: faults that only clients can see."""

STORE_KINDS = ("store_away", "store_slow", "store_refuses", "store_loses_answers", "store_keeps")
"""Faults of the object store: drawn where there is one (`chaos/tiered.py`)."""

NODE_KINDS = tuple(
    name for name in FAULTS if name not in (*BY_NAME_ALONE, *OF_SEVERAL, *OF_CLOCKS, *BESIDE, *OF_CLIENTS, *STORE_KINDS)
)
"""Faults that a whole node is asked to survive."""

KINDS = tuple(name for name in NODE_KINDS if name not in _NODE_ALONE)
"""Faults that the metadata quorum alone is asked to survive."""

DESTRUCTIVE = ("bit_rot", "rot_beside_log", "zeroed_tail", "lose_directory", "wipe", "wipe_ahead", "wipe_one")
"""Faults that take good copies of partitions away for good: harmless only where what is committed is on two disks.
"""
