"""Failures that explain themselves: the story of a partition and a record, its page, the state at an instant."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lab.sim import main as sim_without
from strandline.chaos.checkers.history import History, Partition, Poll, Send, Status
from strandline.chaos.checkers.invariant import InvariantViolated
from strandline.chaos.explain import page, text
from strandline.chaos.explain.recorder import DOWN, QUORUM, Committed, Recording, Replica
from strandline.chaos.explain.story import Story, tell
from strandline.cli.main import main

T0 = Partition("t", 0)


def sim(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["sim", *arguments])


def recorded() -> Recording:
    """n1 leads, acks a record that n2 has in memory alone; n1 dies, n2 comes back without it and leads."""
    replicas = {
        "n1": [
            Replica(0, "leader", 1, 0, 0, -1, "waits for n1 n2"),
            Replica(100, "leader", 1, 0, 1, 1, "waits for n1 n2"),
            Replica(120, "leader", 1, 1, 1, 1, "waits for n1 n2"),
            Replica(300, DOWN, 1, 1, 1, 1),
        ],
        "n2": [
            Replica(0, "follower", 1, 0, 0, -1),
            Replica(110, "follower", 1, 0, 1, 1),
            Replica(250, DOWN, 1, 0, 1, 1),
            Replica(350, "leader", 2, 0, 0, -1, "waits for n2"),
        ],
    }
    committed = [Committed(0, 1, 1, 1, (1, 2), (), False), Committed(340, 2, 2, 2, (2,), (1,), True)]
    return Recording(["n1", "n2"], {"t-0": replicas, QUORUM: {}}, {"t-0": committed})


def told(error: Exception | None, recording: Recording | None = None) -> Story:
    history = History()
    history.send(Send("p", T0, "precious..", invoked_ms=90, completed_ms=121, status=Status.OK, offset=0))
    history.send(Send("p", T0, "later", invoked_ms=390, completed_ms=391, status=Status.OK, offset=1))
    history.poll(Poll("c", [(T0, 1, "later")], completed_ms=395))
    run: Any = SimpleNamespace(
        world=SimpleNamespace(now_ms=400.0),
        history=history,
        nemesis=SimpleNamespace(events=[(250, "power cut n2 for 90 ms"), (300, "kill n1 for 200 ms")]),
    )
    return tell(7, error, run, recording or recorded(), options={"duration_ms": 400})


LOST = InvariantViolated("lost-write", "lost-write in t-0: value=precious.., offset=0", count=1)


def test_the_path_of_a_lost_record() -> None:
    """Sent, appended where at what offset, replicated, committed, acked, gone, never read: in order of time."""
    story = told(LOST)
    assert story.subject == "t-0"
    assert "'precious'" in story.record
    path = [(step.at_ms, step.text) for step in story.steps if step.kind == "record"]
    assert path == [
        (90, "p sends 'precious'"),
        (100, "n1 (leader) appends it at offset 0, epoch 1"),
        (110, "n2 (follower) has it at offset 0, epoch 1"),
        (120, "n1 (leader) counts it as committed: HW 1"),
        (121, "p gets the answer ok, offset 0 (acks=-1)"),
        (121, "nobody ever reads it"),
        (350, "n2 does not hold it any more"),
    ]


def test_the_text_shows_elections_faults_and_states_beside_them() -> None:
    """Who led, who was in sync, epochs, watermarks and ends at the time of every line."""
    lines = text.render(told(LOST))
    found = {
        needle: next((line for line in lines if needle in line), "") for needle in ("power cut", "elected, leader")
    }
    assert "n1 e1 p1 {n1 n2}" in found["power cut"]
    assert "L1 1/1@1" in found["power cut"]
    assert re.search(r"\bL1 1/1@1 +- ", found["power cut"]), "n2 is down by then"
    assert "n2 is elected, leader epoch 2, RECOVERING; ISR {n2}; ELR {n1}" in "\n".join(lines)
    assert "n2 came back with log end 0; it was 1@1" in "\n".join(lines)
    assert "! lost-write: lost-write in t-0: value=precious.., offset=0" in lines[-1]


def test_a_long_story_keeps_the_record_and_the_end() -> None:
    """What is left out is said, where it was."""
    story = told(LOST)
    for number in range(500):
        story.steps.insert(3, story.steps[0]._replace(kind="fault", at_ms=95 + number / 100, text=f"fault {number}"))
    lines = text.render(story, lines_max=40)
    assert len(lines) < 55
    assert sum("events are left out" in line for line in lines) == 1
    assert any("appends it" in line for line in lines)
    assert "lost-write" in lines[-1]


@pytest.mark.parametrize(
    ("error", "subject", "offset"),
    [
        (InvariantViolated("LeaderCompleteness", "x", partition="t-0", log_end=0, committed_end=1), "t-0", 0),
        (InvariantViolated("MaximalIsr", "x", partition="t-0"), "t-0", -1),
        (InvariantViolated("LeaderCandidateCompleteness", "x", partition="t-0", log_end=0, node=2), "t-0", 0),
        (InvariantViolated("ConsistentRead", "x", partition="t-0", offset=0), "t-0", 0),
        (InvariantViolated("VotedOnce", "x", node=1), QUORUM, -1),
        (InvariantViolated("MajorityReachedHighWatermark", "x", high_watermark=3), QUORUM, -1),
        (InvariantViolated("MonotonicHighWatermark", "x", node=1, was=3, now=2), QUORUM, -1),
        (InvariantViolated("Progress", "x"), "t-0", -1),
        (KeyError("x"), "t-0", -1),
        (None, "t-0", -1),
    ],
)
def test_what_a_failure_is_about(error: Exception | None, subject: str, offset: int) -> None:
    """The partition that the violation names, the quorum for its own, else the one that was least whole."""
    story = told(error)
    assert (story.subject, story.record_offset) == (subject, offset)
    assert page.render(story).endswith("</html>")
    assert text.render(story)


class _Page(HTMLParser):
    """What a page would fetch, and whether its tags close."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.open: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "data")]
        if tag not in ("meta", "rect", "line", "path", "circle"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            while self.open.pop() != tag:
                raise AssertionError(f"</{tag}> closes something else")


def test_the_page_is_self_contained_and_escaped() -> None:
    """No network, no script, no tag out of a record's value; a picture and a table."""
    story = told(LOST)
    story.message = "<script>alert(1)</script> & more"
    story.replay = ['strandline sim --seed 7 --options \'{"a": "<b>"}\'']
    html = page.render(story)
    parsed = _Page()
    parsed.feed(html)
    assert parsed.fetched == []
    assert "http" not in html.replace("http-equiv", "")
    assert "script" not in parsed.tags
    assert {"svg", "table", "title"} <= parsed.tags
    assert parsed.open == []
    assert "NaN" not in html


def test_until_stops_and_shows_every_node() -> None:
    """Roles, epochs, ISR, ends of the real cluster; as a table and as JSON; and the same twice."""
    first = sim("--seed", "3", "--until", "2500", "--output", "json")
    assert first.exit_code == 0, first.output
    state = json.loads(first.stdout)
    assert 2500 <= state["at_ms"] < 2600
    assert sorted(state["nodes"])[:3] == ["n1", "n2", "n3"]
    assert set(state["replicas"][QUORUM]["nodes"]) >= {"n1", "n2", "n3"}
    partition = state["replicas"]["alpha-0"]
    assert {"leader", "leader_epoch", "partition_epoch", "isr", "elr"} <= set(partition["committed"])
    assert {"role", "epoch", "high_watermark", "log_end"} <= set(partition["nodes"]["n1"])
    assert sim("--seed", "3", "--until", "2500", "--output", "json").stdout == first.stdout
    table = sim("--seed", "3", "--until", "2500").stdout
    assert "metadata quorum" in table
    assert "leader epoch" in table


def test_until_after_the_end_is_told() -> None:
    """A run of seconds has no state at an hour."""
    result = sim("--scenario", "quorum", "--seed", "1", "--until", "3600000")
    assert result.exit_code == 1
    assert "before 3,600,000 ms" in result.output


def test_watching_changes_nothing(tmp_path: Path) -> None:
    """The run that is watched for a page and a history is the one that was not: same figures, a clean history."""
    plain = json.loads(sim("--seed", "3", "--output", "json").stdout)
    files = ["--html", str(tmp_path / "page.html"), "--history", str(tmp_path / "history.jsonl")]
    watched = sim("--seed", "3", "--output", "json", *files)
    assert watched.exit_code == 0, watched.output
    assert json.loads(watched.stdout)["figures"]["trace"] == plain["figures"]["trace"]
    assert "everything held" in (tmp_path / "page.html").read_text()
    checked = CliRunner().invoke(main, ["check", str(tmp_path / "history.jsonl"), "--output", "json"])
    assert checked.exit_code == 0, checked.output
    figures = json.loads(checked.stdout)
    assert (figures["sends"], figures["acked"], figures["polled"]) == tuple(
        plain["figures"][name] for name in ("sent", "acked", "polled")
    )


def test_a_failed_seed_tells_its_story_and_how_to_shrink_it() -> None:
    """By default; --no-explain is short."""
    arguments = ["--scenario", "quorum", "--seed", "3", "--break", "vote-not-durable"]
    result = CliRunner().invoke(sim_without, arguments)
    assert result.exit_code == 1
    assert "shrink:  python -m lab.sim --break vote-not-durable --seed" in result.stdout
    assert re.search(rf"{QUORUM}: \w+ at \d+ ms", result.stdout)
    assert re.search(r"n\d is \w+ of epoch \d", result.stdout)
    assert QUORUM not in CliRunner().invoke(sim_without, [*arguments, "--no-explain"]).stdout


def test_options_of_one_seed_want_a_seed() -> None:
    """Many seeds have no one page."""
    for option in (["--html", "x.html"], ["--until", "5"], ["--shrink"], ["--history", "x"]):
        result = sim("--seeds", "2", *option)
        assert result.exit_code == 2
        assert "for one seed" in result.output
