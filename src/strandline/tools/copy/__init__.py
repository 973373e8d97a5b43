"""A topic copied into another one of the same cluster, repartitioned: each record once, whatever is killed meanwhile.

The work goes in rounds. A round is a range of offsets of each source partition; what it writes, and in which order,
follows from it alone: source partitions ascending, offsets ascending, each record's partition by its key. Before a
round ONE OffsetCommit notes it in the copy's group: of each source partition where the round begins and ends, of each
target partition where its log ends and which sequence comes next, and the producer id. So whoever goes on knows which
records the round writes, compares them with those that are there already, and writes the rest.

A predecessor that was killed may have batches under way, and one that was paused may wake up. Two rules of the brokers
keep them from doing harm, Apache Kafka's as ours; there is nothing to wait for, and no clock to rely on:

- a round is noted by a static member of the group (KIP-345): a copy that starts takes the member's place, and the
  former one notes no round any more (FENCED_INSTANCE_ID);
- records travel under the sequences of one idempotent producer, which all runs continue: a record's sequence is its
  number in the stream of its target partition. Whoever sends the same round again sends the same records under the same
  numbers, and a leader takes each number once.

- `errors`: what a copy refuses, and finds;
- `plan`: rounds, and how they are noted: pure;
- `target`: the topic that is written: made, or checked;
- `lease`: the member of the group, and its notes;
- `source`: the source's records;
- `writer`: batches on their way to the target, and what an earlier run has brought there;
- `engine`: one run of a copy;
- `topic_copy`: what users call.
"""

from strandline.tools.copy.topic_copy import TopicCopy, copy_topic

__all__ = ["TopicCopy", "copy_topic"]
