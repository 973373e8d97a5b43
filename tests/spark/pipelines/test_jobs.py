"""The four pipelines as their commands run them: the full data set through a cluster, half of it in a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab import pictures
from strandline.cluster.node.dev import DevCluster
from strandline.spark.pipelines import dataset, jobs
from strandline.spark.pipelines.jobs import Context
from strandline.spark.pipelines.outcome import Outcome
from strandline.spark.pipelines.replay_job import flights_replay

pytestmark = pytest.mark.timeout(900)

RECORDS = 340_243


@pytest.mark.parametrize("job", [jobs.flights_delays, jobs.flights_lake, jobs.flights_weather, flights_replay])
def test_a_pipeline_that_goes_on_later_equals_the_whole_data_set(
    spark: Any, cluster: DevCluster, tmp_path: Path, job: Callable[[Context], Outcome]
) -> None:
    """Rows S105, S115: half of the data, then all of it in the same directory; every check of the command holds."""
    for fraction in (0.5, 1.0):
        context = Context(spark, cluster.bootstrap, tmp_path, dataset.data_directory(), fraction, f"{job.__name__}-")
        outcome = job(context)
        assert outcome.held, outcome.checks
    assert len(context.events) == RECORDS
    assert sum(jobs.ends(cluster.bootstrap, f"{job.__name__}-{jobs.FLIGHTS}").values()) == RECORDS
    assert not [name for name, (held, _) in outcome.checks.items() if held is None and not name.startswith("second")]
    [picture] = pictures.draw(tmp_path)
    assert is_drawn(picture)


def is_drawn(picture: Path) -> bool:
    """Whether a picture has something on it."""
    from matplotlib import image

    pixels = image.imread(picture)[:, :, :3]
    return float((pixels < 0.9).any(axis=2).mean()) > 0.02
