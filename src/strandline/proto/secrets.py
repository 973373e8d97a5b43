"""Settings that hold secrets: which they are, and where their text may stand instead of the file that names it.

A secret is never shown: not by an error, a log line, a description or a repr.
"""

from __future__ import annotations

import json
import os
import re
from base64 import b64encode
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from strandline.proto.extras import installing

HIDDEN = "[hidden]"
"""Kafka's own word for a value that is not shown."""

_SECRET = re.compile(r"pas+w|phrase|secret|keystore\.key$|jaas|storage\.options$")
"""Pattern of the names of secret settings, including most misspelt ones."""

_REFERENCE = re.compile(r"\$\{(env|file|dir|keyring):([^}]*)\}")


def is_secret(name: str) -> bool:
    """Whether the setting of this name (Kafka's or Python's spelling) may not be shown."""
    plain = name.lower().replace("_", ".")
    return _SECRET.search(plain) is not None


def shown(name: str, value: object) -> object:
    """The value as an error or a description may show it."""
    return HIDDEN if is_secret(name) and value not in ("", None) else value


_SPOKEN = re.compile(
    r"""(?ix)
    (?P<name> [\w.\-]* (?: pas+w\w* | passphrase | secret\w* | credential\w* | access[._-]?key\w* | account[._-]?key
        | api[._-]?key | token | jaas[\w.]* | storage[._]options ) ["']? \s* [=:] \s* | (?<=[?&])sig= )
    (?P<value> "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' | \{[^}]*\} | [^\s,;&}\])"']+ )
    """
)
"""A value that stands behind a name which tells that it is secret, as settings, JSON, JAAS, URLs and logs write it."""

_OF_URL = re.compile(r"(?P<before>[a-zA-Z][\w+.\-]*://)[^\s/@\"']+@")
_AUTHORIZATION = re.compile(r"(?i)\b(?P<before>(?:basic|bearer)\s+)[\w+/=.\-~]{6,}")
_PEM_END = re.compile(r"(?m)(?:^\S+\n)*-----END [A-Z ]*PRIVATE KEY-----")
"""One that began before a part of a log that is cut out."""
_PEM = re.compile(r"-----BEGIN (?P<what>[A-Z ]*PRIVATE KEY)-----.*?(?:-----END (?P=what)-----|\Z)", re.DOTALL)

KNOWN_CHARS_MIN = 4
"""A secret that is known by its value is hidden wherever it stands, from this length on: less is in every text."""


class Scrubber:
    """Hides secrets in texts that leave the machine: those that are known by their values, in whatever form they are
    often written, and whatever stands where secrets stand."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        forms: set[str] = set()
        for secret in known:
            if len(secret) >= KNOWN_CHARS_MIN:
                raw = secret.encode()
                forms |= {secret, quote(secret, safe=""), raw.hex(), json.dumps(secret)[1:-1], repr(secret)[1:-1]}
                forms |= {secret.replace("\\", "\\\\").replace('"', '\\"'), b64encode(raw).decode().rstrip("=")}
        found = sorted(forms, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, found))) if found else None

    def scrubbed(self, text: str) -> str:
        """The text without secrets."""
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        text = _PEM_END.sub(HIDDEN, _PEM.sub(HIDDEN, text))
        text = _OF_URL.sub(rf"\g<before>{HIDDEN}@", text)
        text = _AUTHORIZATION.sub(rf"\g<before>{HIDDEN}", text)
        return _SPOKEN.sub(_hidden, text)


def _hidden(found: re.Match[str]) -> str:
    value = found["value"]
    mark = value[0] if value[0] in "\"'" else ""
    return f"{found['name']}{mark}{HIDDEN}{mark}"


def resolved(text: str) -> str:
    """The text, or what it refers to: ``${env:NAME}``, ``${file:/path/file.properties:key}``, ``${dir:/path:file}``,
    ``${keyring:SERVICE:USER}``.

    The first three are the references of Kafka's config providers (KIP-297, KIP-421, KIP-887); nothing has to be
    switched on for them. The last one is the operating system's store of passwords, by the library `keyring`.

    Raises:
        ValueError: the text refers to what is not there. The message says what is missing, and never a secret.
    """
    match = _REFERENCE.fullmatch(text.strip())
    if match is None:
        return text
    kind, where = match.groups()
    if kind == "env":
        if where not in os.environ:
            raise ValueError(f"the environment variable {where}, which is not set")
        return os.environ[where]
    path, colon, key = where.rpartition(":")
    if not colon:
        raise ValueError(
            f"${{{kind}:{'SERVICE:USER' if kind == 'keyring' else 'PATH:NAME'}}}; {text.strip()} lacks the name"
        )
    if kind == "keyring":
        return _of_keyring(path, key)
    try:
        if kind == "dir":
            return (Path(path) / key).read_text(encoding="utf-8").rstrip("\r\n")
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"a readable file ({getattr(error, 'strerror', None) or error}: {path})") from None
    for line in lines:
        name, equals, value = line.partition("=")
        if equals and name.strip() == key:
            return value.strip()
    raise ValueError(f"the key {key} of {path}, which has none of that name")


def _of_keyring(service: str, user: str) -> str:
    try:
        import keyring
        from keyring.errors import KeyringError
    except ImportError:
        raise ValueError(f"the library keyring, which is not installed: {installing('keyring')}") from None
    try:
        password = keyring.get_password(service, user)
    except KeyringError as error:
        raise ValueError(f"a keyring that opens ({error})") from None
    if password is None:
        raise ValueError(
            f"the password of {user} for {service}, which the keyring does not have: keyring set {service} {user}"
        )
    return password
