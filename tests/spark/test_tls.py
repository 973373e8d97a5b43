"""Spark writes to and reads from a cluster that speaks TLS alone, with a certificate or a login, in its tasks too."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.client import Admin, NewTopic
from strandline.cluster.node.config_values import read_file
from strandline.cluster.node.dev import DevCluster
from tests.spark.test_streaming import patiently

pytestmark = pytest.mark.timeout(300)  # Spark's own start takes half a minute on a busy machine


@pytest.mark.parametrize("sasl", [False, True], ids=["certificate", "login"])
def test_source_and_sink_over_tls(spark: Any, sasl: bool) -> None:
    with DevCluster(nodes=1, secure=True, sasl=sasl) as cluster:
        given = read_file(str(cluster.client_properties))
        with Admin(cluster.bootstrap, **{key.replace(".", "_"): text for key, text in given.items()}) as admin:
            admin.create_topics([NewTopic("secure", 2, 1)])
        options = {
            "kafka.bootstrap.servers": cluster.bootstrap,
            **{f"kafka.{key}": text for key, text in given.items()},
        }
        rows = spark.range(100).selectExpr("CAST(id AS STRING) AS value")
        patiently(lambda: rows.write.format("strandline").options(**options, topic="secure").mode("append").save())
        read = spark.read.format("strandline").options(**options, subscribe="secure")
        values = patiently(lambda: read.load().collect())
        assert sorted(int(row.value) for row in values) == list(range(100))
