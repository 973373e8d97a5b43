"""The PySpark data source: options, plan, Arrow batches. Needs the extra `strandline[spark]`."""
