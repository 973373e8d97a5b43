"""Real effects of a run's faults, counted where they happen: a fault that was drawn may have met nothing.

Counting draws no chance and changes nothing: a run is the same run, looked at or not.
"""

from __future__ import annotations

EFFECTS: dict[str, str] = {
    "link-slow": "something travelled over a link that was made slow",
    "packet-lost": "a packet was lost and sent again",
    "link-blocked": "something was held by a link that was cut, one way or both",
    "given-up": "a sender gave a connection up, its peer knowing nothing",
    "connection-reset": "a connection was reset under its users",
    "call-late": "a call was carried out behind younger ones, or after its caller gave up",
    "call-twice": "a call was carried out twice",
    "killed": "a process died and nothing of it ran again",
    "killed-in-callback": "a process died between two calls of its disk, in mid-callback",
    "power-lost": "a machine lost power while something ran on it",
    "paused": "a process was stopped and went on later",
    "wall-clock-jumped": "a wall clock was set",
    "wall-clock-jumped-days": "a wall clock was set by days",
    "clocks-apart": "the monotonic clocks of the machines ran at different rates",
    "sectors-lost": "a power cut took sectors that were written and not synced",
    "file-torn": "a power cut left a part of what was last written to a file, and took the rest",
    "name-lost": "a power cut took a file's creation or deletion that was not synced",
    "rename-lost": "a power cut took a rename that was not synced",
    "sync-failed": "a sync failed, and what it covered was not on the disk",
    "dir-sync-failed": "a sync of a directory failed, and names that it covered were not on the disk",
    "sync-hung": "a sync did not end in its time",
    "sync-waited-for": "a process waited a moment for a sync with its event loop, and the sync ended by then",
    "sync-wait-missed": "a process waited a moment for a sync with its event loop, and the sync went on",
    "loop-blocked": "a process waited for a hung disk with its event loop",
    "no-descriptor": "a file or directory could not be opened for want of a descriptor: EMFILE",
    "name-failed": "a file could not be opened, or a name not be looked up or changed",
    "write-failed": "a write failed with EIO",
    "write-torn": "a write failed with EIO after a part of it was done",
    "read-failed": "a read failed with EIO",
    "no-space": "a write met the end of the disk: ENOSPC",
    "names-slow": "a name was made or changed on a disk that takes long for it",
    "disk-slow": "a sync or a read took many times longer",
    "tail-lost": "the disk gave back zeros, or a shorter file, for what had been synced last",
    "bit-flipped": "a bit on a disk turned over",
    "file-damaged": "a file beside the logs was given back with a flipped bit, as zeros, cut, or an older copy",
    "directory-lost": "a partition's directory was moved away, or vanished",
    "metadata-lost": "a machine's metadata directory was gone",
    "store-away": "the object store gave no answer",
    "store-slow": "the object store took many times longer",
    "store-refused": "the object store refused a call: 503",
    "store-answer-lost": "the object store carried a write out, and answered with an error",
    "store-delete-refused": "the object store refused to delete an object",
    "disk-replaced": "a machine got a new, empty disk",
    "disk-unmounted": "a machine started without one of its disks",
}
"""name -> what it says that happened."""
