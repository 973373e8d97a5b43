"""A topic kept as a lake: Parquet by day, or an Iceberg table, each committed record once.

- `export`: from the topic's partitions to files and commits;
- `shape`: the columns, and which records do not fit them; `schemas` reads schemas of JSON and Avro, `protobuf` its own;
- `files`: the open Parquet files, one a day;
- `iceberg`: an Iceberg table in place of the lake's own commits (`strandline.lake`).
"""
