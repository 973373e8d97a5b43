"""The quorum's core: pull-based Raft as Kafka's KRaft has it, as a value machine without any input or output.

`core.RaftCore` takes messages, ticks and an injected generator, and returns an ordered `ready.Ready`. `node.QuorumNode`
is what a node has in every role; each role is one file behind `role.Role`, and returns the `Move` that it asks for;
`transitions.TRANSITIONS` is the one table of legal transitions. The rules are those of KIP-595 (the protocol), KIP-630
(snapshots), KIP-853 (directory ids) and KIP-996 (pre-vote).
"""
