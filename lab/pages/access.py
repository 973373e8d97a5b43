"""The part of docs/security.md that says what each API asks the authorizer."""

from __future__ import annotations

from itertools import groupby

from strandline.proto.kafka.access import ACCESS, OPEN


def access_table() -> str:
    """The APIs, the operations and the resources, as a table in Markdown."""
    lines = ["| API | operation | on | without it |", "|---|---|---|---|"]
    for api in sorted(ACCESS, key=lambda one: one.title):
        title = api.title
        for (where, denied), asks in groupby(ACCESS[api], lambda one: (one.where, one.denied)):
            operations = ", ".join(one.operation.name for one in asks)
            lines.append(f"| {title} | {operations} | {where} | {denied} |")
            title = ""
    lines += [f"| {api.title} | nothing | | it tells {words} |" for api, words in OPEN.items()]
    return "\n".join(lines) + "\n"
