"""`make pictures`: a picture of each result that a pipeline leaves, from the result alone."""

from __future__ import annotations

import json
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from lab.pictures import PICTURES, draw, main

DAYS = [(date(2013, 1, 1) + timedelta(number)).isoformat() for number in range(90)]
AIRPORTS = ("EWR", "JFK", "LGA")
COURSE = [(day, 100, 1_000) for day in DAYS]
RESULTS: dict[str, Any] = {
    "delays": [(place, 1_357_016_400_000 + hour * 3_600_000, 30, 300) for place in AIRPORTS for hour in range(72)],
    "lake": {"rows": dict.fromkeys(DAYS, 900), "before": dict.fromkeys(DAYS, 5), "after": dict.fromkeys(DAYS, 1)},
    "weather": [(kind, place, 100, 90, 900) for kind in ("fog", "wind") for place in AIRPORTS],
    "replay": {"versions": {"blue": COURSE, "green": COURSE}, "switched": DAYS[80], "fixed": DAYS[60]},
}


def test_every_result_has_its_picture(tmp_path: Path) -> None:
    """As jobs write them: under the name of the pipeline."""
    assert RESULTS.keys() == PICTURES.keys()
    for name, result in RESULTS.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({name: result}))
    drawn = draw(tmp_path)
    assert [path.name for path in drawn] == [f"{name}.png" for name in RESULTS]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)


def test_where_nothing_has_run_it_says_so(tmp_path: Path) -> None:
    told = CliRunner().invoke(main, [str(tmp_path)])
    assert told.exit_code == 1
    assert "strandline spark run" in told.output
