"""Measurements of speed and memory, of Strandline and of its peers, on one machine in one run.

    python -m bench                     every measurement, Strandline and Apache Kafka where it can be had
    python -m bench --peers none        Strandline alone
    python -m bench --only produce      some measurements

Results go to the terminal as a table and to bench/results/ as JSON. docs/benchmarks.md says how to read them.
"""
