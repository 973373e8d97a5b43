"""The picture of a story: a lane for each node, time from left to right. SVG, drawn by hand.

Colours are those of Okabe and Ito, which stay apart for colour-blind eyes; and nothing is told by colour alone: a
leader's band is also the highest, a follower's lower, a node that is down has none, and each band says its epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from strandline.chaos.explain.recorder import DOWN, Replica
from strandline.chaos.explain.story import Step, Story

WIDTH = 1140
LEFT = 58
RIGHT = 14
LANE = 104
TOP = 46
FAULTS_MAX = 60
POINTS_MAX = 1500
"""Points of one line at most: more would not be seen."""

LEADER, FOLLOWER, OTHER, BAD = "#0072b2", "#56b4e9", "#e69f00", "#d55e00"
END, WATERMARK, FRAME = "#1a1a1a", "#009e73", "#bbbbb5"
BANDS = {"leader": (LEADER, 18), "follower": (FOLLOWER, 10), DOWN: ("none", 0)}


def draw(story: Story) -> str:
    """The picture with its key."""
    if not story.nodes:
        return "<p>Nothing was seen of it.</p>"
    chart = _Chart(story)
    height = TOP + LANE * len(story.nodes) + 34
    body = "".join(chart.parts())
    label = f"Roles, log ends and high watermarks of {story.subject} over time"
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">'
        '<defs><pattern id="out" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        f'<rect width="6" height="6" fill="#f4f4f2"/><line x1="0" y1="0" x2="0" y2="6" stroke="{FRAME}"/></pattern>'
        f"</defs>{body}</svg>{_key()}"
    )


class _Chart:
    def __init__(self, story: Story) -> None:
        self.story = story
        begin = min((points[0].at_ms for points in story.replicas.values() if points), default=0.0)
        record = [step.at_ms for step in story.steps if step.kind == "record"]
        first = min([*record, story.failed_ms])
        # What lies long before the record was sent does not matter to it.
        self.begin = max(begin, first - 0.25 * max(story.failed_ms - first, 500.0)) if record else begin
        self.end = max(story.failed_ms, self.begin + 1)
        ends = [
            point.log_end
            for points in story.replicas.values()
            for point in points
            if point.log_end >= 0 and point.at_ms >= self.begin
        ]
        before = [point.log_end for node in story.nodes if (point := story.at(node, self.begin)) is not None]
        known = [end for end in [*ends, *before] if end >= 0]
        marks = [point.high_watermark for points in story.replicas.values() for point in points]
        known += [mark for mark in marks if mark > 0 and known and mark >= min(known)]
        self.low, self.high = (min(known), max(known)) if known else (0, 1)
        if story.record_offset >= 0:
            self.low, self.high = min(self.low, story.record_offset), max(self.high, story.record_offset + 1)
        self.high = max(self.high, self.low + 1)

    def x(self, at_ms: float) -> float:
        share = (min(max(at_ms, self.begin), self.end) - self.begin) / (self.end - self.begin)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, lane: int, offset: int) -> float:
        share = (min(max(offset, self.low), self.high) - self.low) / (self.high - self.low)
        return TOP + lane * LANE + LANE - 12 - share * (LANE - 46)

    def parts(self) -> Iterator[str]:
        for lane, node in enumerate(self.story.nodes):
            yield from self._lane(lane, node)
        yield from self._faults()
        yield from self._record()
        yield from self._axis()

    def _lane(self, lane: int, node: str) -> Iterator[str]:
        top = TOP + lane * LANE
        width = WIDTH - LEFT - RIGHT
        yield f'<rect x="{LEFT}" y="{top}" width="{width}" height="{LANE - 6}" fill="#fcfcfa" stroke="{FRAME}"/>'
        yield f'<text x="8" y="{top + LANE / 2}" style="font-size:14px;font-weight:600">{escape(node)}</text>'
        yield f'<text x="{LEFT - 4}" y="{self.y(lane, self.high) + 4:.0f}" text-anchor="end">{self.high}</text>'
        yield f'<text x="{LEFT - 4}" y="{self.y(lane, self.low) + 4:.0f}" text-anchor="end">{self.low}</text>'
        points = self._visible(node)
        yield from self._bands(top, points)
        yield self._line(lane, [(point.at_ms, point.log_end) for point in points], END, 1.6, "")
        yield self._line(lane, [(point.at_ms, point.high_watermark) for point in points], WATERMARK, 1.8, "5 3")
        if self.story.record_offset >= 0:
            y = self.y(lane, self.story.record_offset)
            ends = f'x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"'
            yield f'<line {ends} stroke="{BAD}" stroke-dasharray="1 3"/>'

    def _visible(self, node: str) -> list[Replica]:
        points = self.story.replicas[node]
        inside = [point for point in points if point.at_ms >= self.begin]
        before = self.story.at(node, self.begin)
        return ([before] if before is not None and before not in inside else []) + inside

    def _bands(self, top: int, points: list[Replica]) -> Iterator[str]:
        """Role and epoch: one band for each stay."""
        stays: list[tuple[float, str, int]] = []
        for point in points:
            epoch = -1 if point.role == DOWN else point.epoch
            if not stays or stays[-1][1:] != (point.role, epoch):
                stays.append((point.at_ms, point.role, epoch))
        for place, (at_ms, role, epoch) in enumerate(stays):
            until = stays[place + 1][0] if place + 1 < len(stays) else self.end
            x, width = self.x(at_ms), self.x(until) - self.x(at_ms)
            if role == DOWN:
                yield f'<rect x="{x:.1f}" y="{top + 1}" width="{width:.1f}" height="{LANE - 8}" fill="url(#out)"/>'
                continue
            colour, height = BANDS.get(role, (OTHER, 6))
            y = top + 20 - height
            size = f'x="{x:.1f}" y="{y}" width="{max(width, 1):.1f}" height="{height}"'
            yield (
                f'<rect {size} fill="{colour}" stroke="#fff">'
                f"<title>{escape(role)}, epoch {epoch}, from {self.story.moment(at_ms)}</title></rect>"
            )
            words = f"{role} e{epoch}" if width > 78 else f"e{epoch}" if width > 24 else ""
            if words:
                ink = "#fff" if role == "leader" else "#1a1a1a"
                base = top + 19 if height > 9 else top + 12
                yield f'<text x="{x + 4:.1f}" y="{base}" style="fill:{ink}">{words}</text>'

    def _line(self, lane: int, points: list[tuple[float, int]], colour: str, width: float, dash: str) -> str:
        """Steps; only as many as can be told apart."""
        known = [(at_ms, offset) for at_ms, offset in points if offset >= 0]
        if not known:
            return ""
        known = known[:: max(1, len(known) // POINTS_MAX)] + known[-1:]
        y = self.y(lane, known[0][1])
        path = [f"M{self.x(known[0][0]):.1f} {y:.1f}"]
        for at_ms, offset in known[1:]:
            path.append(f"H{self.x(at_ms):.1f}")
            if self.y(lane, offset) != y:
                y = self.y(lane, offset)
                path.append(f"V{y:.1f}")
        path.append(f"H{self.x(self.end):.1f}")
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        return f'<path d="{"".join(path)}" fill="none" stroke="{colour}" stroke-width="{width}"{dashed}/>'

    def _faults(self) -> Iterator[str]:
        bottom = TOP + LANE * len(self.story.nodes)
        numbered = enumerate((step for step in self.story.steps if step.kind == "fault"), 1)
        faults = [(number, step) for number, step in numbered if step.at_ms >= self.begin]
        last = -100.0
        for number, step in faults[-FAULTS_MAX:]:
            x = self.x(step.at_ms)
            yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{bottom}" stroke="#999" stroke-dasharray="2 4"/>'
            if x - last > 7 * len(str(number)) + 5:
                last = x
                label = f"<title>{escape(step.text)}</title>"
                yield f'<text x="{x:.1f}" y="{TOP - 12}" text-anchor="middle">{number}{label}</text>'

    def _record(self) -> Iterator[str]:
        """Lines that mark where the record was, and the violation."""
        bottom = TOP + LANE * len(self.story.nodes)
        for step in self.story.steps:
            x = self.x(step.at_ms)
            if step.kind == "violation":
                yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="20" y2="{bottom}" stroke="{BAD}" stroke-width="2.5"/>'
                words = f"✖ {escape(self.story.error)}"
                yield f'<text x="{x - 4:.1f}" y="14" text-anchor="end" style="font-weight:600">{words}</text>'
            elif step.kind == "record" and self.story.record_offset >= 0 and step.at_ms >= self.begin:
                yield from self._dot(step, x)

    def _dot(self, step: Step, x: float) -> Iterator[str]:
        title = f"<title>{self.story.moment(step.at_ms)}: {escape(step.text)}</title>"
        if step.node not in self.story.nodes:
            yield f'<path d="M{x - 5:.1f} 24h10l-5 8z" fill="{BAD}">{title}</path>'
            return
        y = self.y(self.story.nodes.index(step.node), self.story.record_offset)
        gone = "not hold" in step.text
        shape = f"M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10"
        if gone:
            yield f'<path d="{shape}" stroke="{BAD}" stroke-width="2.5">{title}</path>'
        else:
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{BAD}" stroke="#fff">{title}</circle>'

    def _axis(self) -> Iterator[str]:
        y = TOP + LANE * len(self.story.nodes) + 14
        span = self.end - self.begin
        step = next((size for size in _SIZES if span / size <= 12), _SIZES[-1])
        at = (int(self.begin / step) + 1) * step
        while at < self.end:
            x = self.x(at)
            yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y - 18}" y2="{y - 12}" stroke="#444"/>'
            yield f'<text x="{x:.1f}" y="{y}" text-anchor="middle">{self.story.moment(at)}</text>'
            at += step


_SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 60_000, 600_000)


def _key() -> str:
    def sample(inner: str, words: str) -> str:
        return f'<li><svg viewBox="0 0 26 12">{inner}</svg>{words}</li>'

    return (
        '<ul class="key">'
        + sample(f'<rect width="26" height="12" fill="{LEADER}"/>', "leads (high band, with its epoch)")
        + sample(f'<rect y="3" width="26" height="7" fill="{FOLLOWER}"/>', "follows (lower band)")
        + sample(f'<rect y="5" width="26" height="4" fill="{OTHER}"/>', "another role (thin band)")
        + sample(f'<rect width="26" height="12" fill="#f4f4f2" stroke="{FRAME}"/>', "hatched: down")
        + sample(f'<path d="M0 6H26" stroke="{END}" stroke-width="1.6"/>', "log end offset")
        + sample(
            f'<path d="M0 6H26" stroke="{WATERMARK}" stroke-width="1.8" stroke-dasharray="5 3"/>', "high watermark"
        )
        + sample(f'<circle cx="13" cy="6" r="5" fill="{BAD}"/>', "the record arrives, or counts as committed")
        + sample(f'<path d="M8 1l10 10m0-10l-10 10" stroke="{BAD}" stroke-width="2.5"/>', "and is gone")
        + sample(f'<path d="M8 2h10l-5 8z" fill="{BAD}"/>', "its clients: sent, answered, read")
        + "</ul><p>Numbers above are faults, as in the table below; a pointer over anything tells more.</p>"
    )
