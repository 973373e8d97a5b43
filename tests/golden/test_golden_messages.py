"""Numbers and types of every message between nodes and every record of the metadata log, as a .proto file says them.

A diff of the file is a change of what goes over the wire or stands on disk: nodes of two versions talk to each other
during a rolling upgrade, and a log is read by later versions. So a field may be added, and none may change.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from strandline.cluster.node.audit_partitions import APPEND_AUDIT
from strandline.cluster.transactions.lost_markers import TRANSACTION_OUTCOMES
from strandline.cluster.transactions.marker_writes import WRITE_MARKERS
from strandline.cluster.transactions.verification import VERIFY_PARTITIONS
from strandline.controller import methods
from strandline.controller.metadata.table import TABLE
from strandline.controller.operations import OPERATIONS
from strandline.controller.quorum.methods import METHODS as QUORUM_METHODS
from strandline.proto.messages.mapper import mapper_of

GOLDEN = Path(__file__).parent / "messages" / "strandline.proto"

ALL_METHODS = (
    *QUORUM_METHODS.values(),
    *(each.method for each in OPERATIONS),
    methods.SESSION,
    methods.PING,
    methods.DESCRIBE_QUORUM,
    APPEND_AUDIT,
    WRITE_MARKERS,
    VERIFY_PARTITIONS,
    TRANSACTION_OUTCOMES,
)

SCALARS = {
    number: name[len("TYPE_") :].lower() for name, number in vars(FieldDescriptor).items() if name.startswith("TYPE_")
}


def with_parts(message: Descriptor) -> Iterator[Descriptor]:
    """A message and those that its fields have."""
    yield message
    for field in message.fields:
        if field.message_type is not None:
            yield from with_parts(field.message_type)


def as_proto(message: Descriptor) -> str:
    """The message as a .proto file has it."""
    lines = [f"message {message.name} {{"]
    for field in message.fields:
        label = "repeated " if field.is_repeated else "optional " if field.containing_oneof else ""
        kind = SCALARS[field.type] if field.message_type is None else field.message_type.name
        lines.append(f"  {label}{kind} {field.name} = {field.number};")
    return "\n".join([*lines, "}"])


def written() -> str:
    """The file as the code has it: messages by name, then the paths of the calls."""
    wholes = [mapper.message for method in ALL_METHODS for mapper in (method.request, method.reply)]
    wholes += [row.mapper.message for row in TABLE.values()] + [mapper_of(methods.ControllerReply).message]
    messages = {part.name: part for whole in wholes for part in with_parts(whole.DESCRIPTOR)}
    head = "// Written by `pytest tests/golden --update`. No field here may change its number or its type."
    parts = [head, 'syntax = "proto3";', *(as_proto(messages[name]) for name in sorted(messages))]
    calls = [f"// {one.path} ({one.request.kind.__name__}): {one.reply.kind.__name__}" for one in ALL_METHODS]
    rows = [TABLE[number] for number in sorted(TABLE)]
    records = [f"// record type {row.type_id}: {row.kind.__name__}" for row in rows]
    return "\n\n".join([*parts, "\n".join(calls), "\n".join(records)]) + "\n"


def test_messages_are_those_that_other_versions_know(request: pytest.FixtureRequest) -> None:
    """Paths, numbers, types and labels."""
    if request.config.getoption("--update", default=False):
        GOLDEN.write_text(written())
    assert written() == GOLDEN.read_text()


def test_no_two_messages_have_one_name() -> None:
    """The file above would show one of them."""
    wholes = [mapper for method in ALL_METHODS for mapper in (method.request, method.reply)]
    parts = {part.full_name for whole in wholes for part in with_parts(whole.message.DESCRIPTOR)}
    assert len({name.rpartition(".")[2] for name in parts}) == len(parts)
