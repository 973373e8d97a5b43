"""Source 1: follows the files of a directory, line by line, into a topic. Lines are appended, and files come new.

python files_source.py 127.0.0.1:9092 inputs/departures files.place

A line's position is the byte behind it in its file: the next run goes on at that byte. Killed at any moment, it loses
no line, and repeats none that the log had taken before the next run looked (see `hub.Feed`). A line without its end is
still being written, and waits. Files may only grow; one that is all sent may be deleted, its name not be used again.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from hub import DEPARTURES, Feed

CHUNK_BYTES = 262_144
"""Read of a file in one go; the longest line."""

PAUSE_S = 0.2


def send_new_lines(feed: Feed, path: Path) -> bool:
    """Send what a file has behind its place, a chunk at most; says whether there was anything."""
    place, size = feed.place(path.name), path.stat().st_size
    if size < place:
        raise ValueError(f"{path} has {size} bytes, and {place} were sent: files may only grow; give it a new name")
    if size == place:
        return False
    with path.open("rb") as file:
        file.seek(place)
        chunk = file.read(CHUNK_BYTES)
    *lines, unfinished = chunk.split(b"\n")
    if len(unfinished) == CHUNK_BYTES:
        raise ValueError(f"{path} has a line of more than {CHUNK_BYTES} bytes at byte {place}: raise CHUNK_BYTES")
    records = []
    for line in lines:
        try:
            key = json.loads(line)["id"].encode()
        except (ValueError, KeyError) as error:
            raise ValueError(f"{path} has a line at byte {place} that is no JSON with an id: {line[:80]!r}") from error
        place += len(line) + 1
        records.append((place, key, line))
    if records:
        feed.send(path.name, records)
    return bool(records)


def run(bootstrap: str, directory: str, place: str) -> None:
    """Follow the directory until somebody stops it."""
    feed = Feed(bootstrap, DEPARTURES, place)
    while True:
        sent = [send_new_lines(feed, path) for path in sorted(Path(directory).glob("*.jsonl"))]
        if not any(sent):
            time.sleep(PAUSE_S)


if __name__ == "__main__":
    run(*sys.argv[1:])
