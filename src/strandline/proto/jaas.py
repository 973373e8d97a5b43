"""Kafka's ``sasl.jaas.config``: one login module and its options, as a line of text.

    org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="${env:ALICE}";

Of the module the last word alone counts. A value may refer to what stands elsewhere (`strandline.proto.secrets`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from strandline.proto.secrets import resolved

_HEAD = re.compile(r"\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)\b", re.IGNORECASE)
_OPTION = re.compile(r"""\s*([\w.\-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""")
_END = re.compile(r"\s*;\s*")


class Jaas(NamedTuple):
    """A login module, by the last word of its name, and its options."""

    module: str
    options: Mapping[str, str]


def parse_jaas(text: str) -> Jaas:
    """The module of a JAAS line, references in its values looked up.

    Raises:
        ValueError: with what it should be. The message never holds a value.
    """
    text = resolved(text)
    head = _HEAD.match(text)
    if head is None:
        raise ValueError('a line such as \'PlainLoginModule required username="alice" password="..." ;\'')
    options: dict[str, str] = {}
    at = head.end()
    while (option := _OPTION.match(text, at)) is not None:
        name = option[1]
        if name in options:
            raise ValueError(f"each option once; {name} stands there twice")
        options[name] = _value(name, next(group for group in option.groups()[1:] if group is not None))
        at = option.end()
    end = _END.match(text, at)
    if end is None or end.end() != len(text):
        after = f"after {list(options)[-1]}" if options else "after the module"
        raise ValueError(f'options as name="value" and a ; at the end; something else stands {after}')
    return Jaas(head[1].rpartition(".")[2], options)


def _value(name: str, written: str) -> str:
    text = re.sub(r"\\(.)", r"\1", written)
    if re.search(r"\$\{(?:env|file|dir|keyring):", text) and not re.fullmatch(r"\$\{[^}]*\}", text):
        raise ValueError(f"a reference that is the whole value of {name}, as ${{env:NAME}}")
    return resolved(text)
