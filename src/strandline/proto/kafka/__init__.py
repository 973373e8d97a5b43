"""Kafka's wire, for whoever speaks it: the broker's listener, the client, the coordinators' records.

    apis            the APIs: keys, names, since which version each is flexible (KIP-482)
    fields          strings, arrays, ids, tagged fields and frames, and how much a message may hold of them
    schema          the codecs, and the layout of every message that is not below, from kio
    produce, fetch  what carries records, in both directions, by hand
    declared        layouts that kio does not have, declared here: the records of internal topics
    group_records, consumer_group_records   the records of `__consumer_offsets`
    transaction_records                     the records of `__transaction_state`
    consumer_protocol                       what members of a classic group tell one another

Every function that reads takes bytes from a peer or a disk and raises ProtocolError, and nothing else, for those that
are not what they say. It holds each length and count against the bytes that are left before it allocates anything.
"""
