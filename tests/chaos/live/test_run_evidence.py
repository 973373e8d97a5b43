"""`strandline chaos run` that comes to no end: what it keeps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.chaos.live import runner
from strandline.chaos.live.cluster import LiveCluster
from strandline.chaos.live.runner import LiveRun, RunOptions


@pytest.mark.timeout(170)
def test_a_run_that_comes_to_no_end_keeps_its_evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No acks in time, an answer that nobody expected, a node that is gone once the clients have ended: each is told as
    a violation, with the run's story and history beside it."""

    def violation(run: LiveRun, name: str) -> str:
        [told] = run.execute().violations
        assert json.loads((tmp_path / name / "run.json").read_text())["violations"] == [told]
        assert (tmp_path / name / "history.jsonl").exists()
        return told

    def live_run(name: str, topic: str) -> LiveRun:
        (tmp_path / name).mkdir()
        options = RunOptions(["slow-disk", "pause"], 0.01, 1, ["own"], topics={topic: 1}, every_fault=True)
        return LiveRun(cluster, options, tmp_path / name, lambda line: None)

    with LiveCluster() as cluster:
        with monkeypatch.context() as patch:
            patch.setattr(runner, "READY_S", 0.0)
            assert violation(live_run("late", "one"), "late").startswith(
                "Progress: no acks in every partition, after 0 s"
            )
        told = violation(live_run("again", "one"), "again")
        assert told.startswith("Unjudged: the run came to no end: ")
        assert "TOPIC_ALREADY_EXISTS" in told
        run = live_run("fallen", "two")
        finish = run._load.finish

        def finish_and_fall(meanwhile: Callable[[], None]) -> None:
            finish(meanwhile)
            cluster.kill(1)

        monkeypatch.setattr(run._load, "finish", finish_and_fall)
        assert violation(run, "fallen") == "NoNodeFalls: nodes [1] ended by themselves"
        told = json.loads((tmp_path / "fallen" / "run.json").read_text())
        assert {what.partition(":")[0] for _, what in told["struck"]} == {"slow-disk", "pause"}  # though 0.6 s are over
