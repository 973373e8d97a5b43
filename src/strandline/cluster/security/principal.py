"""The principal of a client's certificate: its subject as Java writes it (RFC 2253), shortened by mapping rules.

The rules are those of `ssl.principal.mapping.rules` (KIP-371): ``RULE:pattern/replacement/[LU]`` or ``DEFAULT``,
separated by commas. The first whose pattern matches the whole name counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from strandline.proto.errors import ConfigError

ANONYMOUS = "User:ANONYMOUS"
"""Kafka's name for a client that did not authenticate."""

_SHORT = {
    "commonName": "CN",
    "countryName": "C",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
"""Attributes that RFC 2253 has names for; Java writes everything else as a number and bytes."""

_EMAIL = "1.2.840.113549.1.9.1"

NAME_MAX = 4096
"""Characters of a subject that is mapped: a longer one is nobody's name."""

_PART = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)")


class Rule(NamedTuple):
    """One rule; DEFAULT is the one that matches everything and changes nothing."""

    pattern: re.Pattern[str]
    replacement: str
    case: str

    def apply(self, name: str) -> str | None:
        """The short name, None where the rule does not match."""
        match = self.pattern.fullmatch(name)
        if match is None:
            return None
        short = match.expand(self.replacement)
        return {"L": short.lower(), "U": short.upper()}.get(self.case, short)


DEFAULT = Rule(re.compile(r".*", re.DOTALL), r"\g<0>", "")


class PrincipalRules:
    """The rules of one listener."""

    def __init__(self, name: str, text: str) -> None:
        """Parse the setting. Raises ConfigError."""
        self.rules: list[Rule] = []
        text = text.strip()
        at = 0
        while at < len(text):
            match = _PART.match(text, at)
            if match is None:
                raise ConfigError(name, text, "RULE:pattern/replacement/ (then L, U or nothing) or DEFAULT, by commas")
            self.rules.append(DEFAULT if match[1] else _rule(name, text, match))
            at = match.end()
        self.rules = self.rules or [DEFAULT]

    def principal(self, certificate: Mapping[str, Any]) -> str | None:
        """`User:...` of a certificate that was checked; None where no rule matches."""
        name = subject_name(certificate.get("subject", ()))
        if len(name) > NAME_MAX:
            return None
        for rule in self.rules:
            short = rule.apply(name)
            if short is not None:
                return f"User:{short}"
        return None


def _rule(name: str, text: str, match: re.Match[str]) -> Rule:
    pattern, replacement = match[2].replace("\\/", "/"), match[3].replace("\\/", "/")
    try:
        compiled = re.compile(pattern)
        template = re.sub(r"\$(\d)", r"\\g<\1>", replacement)
        for number in re.findall(r"\$(\d)", replacement):
            if int(number) > compiled.groups:
                raise ConfigError(name, text, f"${number} needs as many groups; the pattern has {compiled.groups}")
    except re.error as error:
        raise ConfigError(name, text, f"a regular expression between RULE: and / ({error})") from None
    return Rule(compiled, template, match[4])


def subject_name(subject: Sequence[Sequence[tuple[str, str]]]) -> str:
    """The subject that `getpeercert` gives, as Java's X500Principal.getName writes it: the last part first."""
    return ",".join("+".join(_part(*pair) for pair in part) for part in reversed(subject))


def _part(name: str, value: str) -> str:
    if name in _SHORT:
        return f"{_SHORT[name]}={_escaped(value)}"
    if name == "emailAddress":
        data = value.encode()
        size = bytes([len(data)]) if len(data) < 128 else bytes([0x81, len(data) & 0xFF])
        encoded = b"\x16" + size + data  # an IA5String
        return f"{_EMAIL}=#{encoded.hex()}"
    return f"{name}={_escaped(value)}"


def _escaped(value: str) -> str:
    text = re.sub(r'([,+"\\<>;])', r"\\\1", value)
    if text.startswith(("#", " ")):
        text = "\\" + text
    return text[:-1] + "\\ " if len(text) > 1 and text.endswith(" ") else text
