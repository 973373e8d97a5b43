"""Kafka's wire, for whoever speaks it: the broker's listener, the client, the coordinators' records.

    apis            the APIs: keys, names, since which version each is flexible (KIP-482)
    frames          what stands before a message: its length, the headers of requests and answers
    bounds          how much a message may hold: lengths, array elements, tagged fields
    fields          strings, arrays, ids and tagged fields of the messages that are read and written by hand
    schema          every other message, by kio's schemas
    produce, fetch_request, fetch_response  what carries records, in both directions
    group_records, consumer_group_records   the records of `__consumer_offsets`
    consumer_protocol                       what members of a classic group tell one another

Every function that reads takes bytes from a peer or a disk and raises ProtocolError, and nothing else, for those that
are not what they say. It holds each length and count against the bytes that are left before it allocates anything.
"""
