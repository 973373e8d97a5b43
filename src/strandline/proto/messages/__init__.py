"""Messages between nodes, and records on disk: defined once, as frozen dataclasses, and carried as protobuf (proto3).

`fields` numbers a dataclass's fields, `forms` says what stands in the message for each, `mapper` makes the message and
converts values, and `method` is one call between nodes with the types that it takes and answers.
"""
