"""What `strandline demo` and `strandline spark run` show at their end."""

from __future__ import annotations

import pytest

from strandline.cli.outcome import show_outcome
from strandline.spark.pipelines.outcome import Outcome


def test_advice_is_shown_as_it_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    """What stands in brackets is no style of rich's: `pip install '.'` installs no Spark."""
    show_outcome(Outcome({"size": "[1 MB]"}, {"Spark agrees": (None, "pip install '.[spark]' in a checkout")}))
    shown = capsys.readouterr().out
    assert "[1 MB]" in shown
    assert "'.[spark]'" in shown
