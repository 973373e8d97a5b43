"""The follower as a streaming query of Spark: of each batch the latest change of each row.

cp snapshot.db copy.db
python spark_follower.py 127.0.0.1:9092 shop-changes copy.db checkpoint 100000      # changes of a micro-batch at most
"""

from __future__ import annotations

import json
import sys
from contextlib import closing
from typing import Any

from follower import Follower
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as f

from strandline.spark.source import StrandlineDataSource


def apply(batch: Any, path: str) -> None:
    """What is due of a micro-batch, and the place, in one transaction: a batch that is repeated changes nothing."""
    with closing(Follower(path)) as follower:
        due = batch.where(f.col("change") > follower.change)
        # Numbers without a gap from the one that is due on; a change that was sent twice has one rank.
        rank = f.dense_rank().over(Window.orderBy("change"))
        unbroken = due.withColumn("rank", rank).where(f.col("change") == follower.change + f.col("rank"))
        latest = unbroken.groupBy("key").agg(
            f.max("change").alias("change"), f.max_by("value", "change").alias("value"), f.max("offset").alias("offset")
        )
        rows = latest.orderBy("change").collect()
        if rows:
            follower.begin()
            for row in rows:
                follower.write(row.key, row.value)
            follower.commit(max(row.offset for row in rows) + 1, rows[-1].change)


def follow(spark: SparkSession, bootstrap: str, topic: str, path: str, checkpoint: str, *, most: int) -> Any:
    """The query, not started. It begins where the snapshot says, and goes on from its checkpoint."""
    with closing(Follower(path)) as follower:
        start = {topic: {"0": follower.next}}
    records = (
        spark.readStream.format("strandline")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", json.dumps(start))
        .option("includeHeaders", "true")
        .option("maxOffsetsPerTrigger", most)
        .load()
    )
    number = "cast(cast(filter(headers, each -> each.key = 'change')[0].value as string) as long)"
    changes = records.selectExpr("offset", "key", "value", f"{number} as change")
    writer = changes.writeStream.foreachBatch(lambda batch, _epoch: apply(batch, path))
    return writer.option("checkpointLocation", checkpoint)


if __name__ == "__main__":
    session = SparkSession.builder.appName("follower").getOrCreate()
    session.dataSource.register(StrandlineDataSource)
    *names, most = sys.argv[1:]
    follow(session, *names, most=int(most)).start().awaitTermination()
