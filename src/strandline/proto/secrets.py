"""Settings that hold secrets: which they are, and where their text may stand instead of the file that names it.

A secret is never shown: not by an error, a log line, a description or a repr.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from strandline.proto.extras import installing

HIDDEN = "[hidden]"
"""Kafka's own word for a value that is not shown."""

_SECRET = re.compile(r"pas+w|phrase|secret|keystore\.key$|jaas|storage\.options$")
"""What the name of a secret holds, most mistyped ones included."""

_REFERENCE = re.compile(r"\$\{(env|file|dir|keyring):([^}]*)\}")


def is_secret(name: str) -> bool:
    """Whether the setting of this name (Kafka's or Python's spelling) may not be shown."""
    plain = name.lower().replace("_", ".")
    return _SECRET.search(plain) is not None


def shown(name: str, value: object) -> object:
    """The value as an error or a description may show it."""
    return HIDDEN if is_secret(name) and value not in ("", None) else value


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
