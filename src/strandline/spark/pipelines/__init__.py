"""Four streaming pipelines over the flights that left New York in 2013, and the weather they left in.

dataset   the events, in the order in which they reach the log: late ones and duplicates among them
feed      the events to their topics; a feed that was cut off goes on where it ended
frames    from a topic to typed columns, and from columns to records; one row for each flight
delays    (a) live delays per airport in event-time windows, to a topic and to Parquet
lake      (b) the log as a Parquet lake: exactly once by offset ranges, restartable, compacted
weather   (c) flights enriched with the weather of their hour, a stream joined to a stream
replay    (d) a bug fixed: a second run from the beginning beside the first, and the switch
progress  what a query has done, batch by batch
claim     a directory belongs to one command at a time
jobs      the four as one job each: its result, and what must hold afterwards

Transformations are functions from DataFrame to DataFrame: the same on a stream, on a batch and in a test.
"""
