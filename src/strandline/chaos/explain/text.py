"""Renders a story as text: one line for each event, with the state of all replicas of the partition beside it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from strandline.chaos.explain.recorder import DOWN, Replica
from strandline.chaos.explain.story import Step, Story, names

LETTERS = {"leader": "L", "follower": "f", DOWN: "-", "idle": "i", "offline": "X", "deleted": "d"}
QUORUM_LETTERS = {
    "unattached": "u",
    "prospective": "p",
    "candidate": "c",
    "resigned": "r",
    "observer": "o",
}
LEGEND = "L leads, f follows, i idle, X offline, - down; high watermark/log end@its epoch"
QUORUM_LEGEND = "L leads, f follows, u unattached, p prospective, c candidate, r resigned, - down"

WINDOW_LINES = 60


def render(story: Story, *, lines_max: int = WINDOW_LINES) -> list[str]:
    """Lines of the story, oldest event first. A long story is shortened, but the path of the record is always shown."""
    legend = LEGEND if story.committed else f"{QUORUM_LEGEND}; {LEGEND.split('; ')[1]}"
    lines = [f"{story.subject}: {story.error} at {story.moment(story.failed_ms)}"]
    if story.record:
        lines.append(f"concerned: {story.record}")
    lines.append(legend)
    lines.append("")
    header = f"{story.unit:>8}  {'committed':<22}  " + "  ".join(f"{node:<15}" for node in story.nodes) + "  event"
    lines.append(header.rstrip())
    for shown in chosen(story, lines_max):
        if isinstance(shown, int):
            lines.append(f"{'':>8}  ... {shown} events are left out")
        else:
            lines += _row(story, shown)
    return lines


def chosen(story: Story, lines_max: int) -> list[Step | int]:
    """Select the steps to show. An int between two steps is the number of steps left out there.

    Steps of the record's path, truncations and the violation are always shown (only the last ones, if there are too
    many). Of the other steps those around the sending of the record and those right before the end are shown.
    """
    steps = story.steps
    wanted = [place for place, step in enumerate(steps) if step.kind in ("record", "truncated", "violation")]
    wanted = wanted[-lines_max:]
    others = [place for place in range(len(steps)) if place not in set(wanted)]
    room = max(0, lines_max - len(wanted))
    begin = next((place for place in wanted if steps[place].kind == "record"), len(steps))
    early = [place for place in others if place >= begin - 3][: room // 3]
    late = others[len(others) - (room - len(early)) :] if room > len(early) else []
    shown: list[Step | int] = []
    last = -1
    for place in sorted({*wanted, *early, *late}):
        if place - last > 1:
            shown.append(place - last - 1)
        shown.append(steps[place])
        last = place
    return shown


def _row(story: Story, step: Step) -> Iterator[str]:
    committed = story.committed_at(step.at_ms)
    committed_state = ""
    if committed is not None:
        leader = f"n{committed.leader}" if committed.leader >= 0 else "--"
        committed_state = f"{leader} e{committed.leader_epoch} p{committed.partition_epoch} {names(committed.isr)}"
    states = "  ".join(f"{_state(story.at(node, step.at_ms)):<15}" for node in story.nodes)
    mark = {"record": "> ", "violation": "! ", "truncated": "< "}.get(step.kind, "")
    wrapped = textwrap.wrap(mark + step.text, 90, subsequent_indent="  ") or [""]
    yield f"{step.at_ms:>8.0f}  {committed_state:<22}  {states}  {wrapped[0]}"
    for more in wrapped[1:]:
        yield " " * (8 + 2 + 22 + 2 + 17 * len(story.nodes)) + more


def _state(point: Replica | None) -> str:
    if point is None:
        return ""
    letter = (LETTERS | QUORUM_LETTERS).get(point.role, "?")
    if point.role == DOWN:
        return letter
    epoch = f"@{point.log_end_epoch}" if point.log_end_epoch >= 0 else ""
    return f"{letter}{point.epoch} {point.high_watermark}/{point.log_end}{epoch}"


def state_words(point: Replica | None) -> str:
    """State of a replica at an instant, in full words for the HTML page."""
    if point is None:
        return ""
    if point.role == DOWN:
        return "down"
    epoch = f"@{point.log_end_epoch}" if point.log_end_epoch >= 0 else ""
    return f"{point.role} e{point.epoch}, HW {point.high_watermark}, end {point.log_end}{epoch}"
