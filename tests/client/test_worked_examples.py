"""The worked examples of docs/client.md run as they stand, but for the address (rows S67, S121, S123)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from strandline.client import Admin, NewTopic
from strandline.cluster.node.dev import DevCluster

PAGE = (Path(__file__).parents[2] / "docs" / "client.md").read_text()


def test_the_examples_about_groups_run(cluster: DevCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """In the order of the page, in one cluster; what the comments promise is printed."""
    chapter = PAGE[PAGE.index("### Groups") : PAGE.index("### Groups on the command line")]
    examples = re.findall(r"```python\n(.*?)```", chapter, re.DOTALL)
    assert len(examples) == 4
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("meals", 1)])
    for example in examples:
        exec(compile(example.replace("127.0.0.1:9092", cluster.bootstrap), "docs/client.md", "exec"), {})
    told = capsys.readouterr().out
    assert "stable (generation 1 as " in told
    assert "{TopicPartition(topic='meals', partition=0): 0}" in told
    assert "Report(handled=99, failures=3, dead_letters=1)" in told
    with Admin(cluster.bootstrap) as admin:
        admin.delete_topics(["meals", "meals.dead", "questions", "answers"])
