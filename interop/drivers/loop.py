"""What the Python drivers share: commands in, answers out, a JSON object a line. Runs in the client's environment.

A command is {"op": name, ...arguments}; its answer {"ok": {...}}, {"unsupported": reason}, or {"error": code,
"text": ...} with Kafka's error code, or -1 where the client shows none. Bytes are base64 or null.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import ssl
import sys
from collections.abc import Callable, Mapping
from typing import Any

LOGIN: dict[str, Any] = json.loads(os.environ.get("INTEROP_LOGIN", "{}"))
"""What this client shows to come in (interop/logins.py); empty where the cluster asks nobody."""


class Unsupported(Exception):
    """The client has no such thing; the message says what it lacks."""


class Refused(Exception):
    """An error of Kafka's, or of the client (code -1)."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def packed(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def unpacked(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def record(partition: int, offset: int, timestamp: int, key: Any, value: Any, headers: Any) -> dict[str, Any]:
    """One read record as the suite expects it."""
    return {
        "partition": partition,
        "offset": offset,
        "timestamp": timestamp,
        "key": packed(key),
        "value": packed(value),
        "headers": [[name, packed(data)] for name, data in headers or ()],
    }


def login_settings(token_provider: Any) -> dict[str, Any]:
    """For aiokafka and kafka-python, which have the same names. `token_provider` gives LOGIN's token."""
    if not LOGIN:
        return {}
    context = ssl.create_default_context(cafile=LOGIN["ca"])
    if LOGIN["keystore"]:
        context.load_cert_chain(LOGIN["keystore"])
    found = {"security_protocol": LOGIN["protocol"], "ssl_context": context}
    if LOGIN["mechanism"] == "OAUTHBEARER":
        found |= {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": token_provider}
    elif LOGIN["mechanism"]:
        found["sasl_mechanism"] = LOGIN["mechanism"]
        found |= {"sasl_plain_username": LOGIN["user"], "sasl_plain_password": LOGIN["secret"]}
    return found


class Heard(logging.Handler):
    """Keeps what a client logged as wrong first: some say there alone why they were refused."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = self.text or record.getMessage()


heard = Heard(logging.WARNING)
if LOGIN:
    logging.getLogger().addHandler(heard)


def answer(call: Callable[[], dict[str, Any] | None], code_of: Callable[[Exception], int]) -> dict[str, Any]:
    try:
        return {"ok": call() or {}}
    except Unsupported as lacking:
        return {"unsupported": str(lacking)}
    except Exception as error:
        code = error.code if isinstance(error, Refused) else code_of(error)
        text = f"{type(error).__name__}: {error}"[:300]
        return {"error": code, "text": f"{text}; it logged: {heard.text[:300]}" if heard.text else text}


def serve(ops: Mapping[str, Callable[..., dict[str, Any] | None]], code_of: Callable[[Exception], int]) -> None:
    """Answer commands until the input ends."""
    for line in sys.stdin:
        command = json.loads(line)
        heard.text = ""
        op = ops.get(command.pop("op"))
        if op is None:
            told: dict[str, Any] = {"unsupported": "no such call in this client"}
        else:
            told = answer(lambda op=op, command=command: op(**command), code_of)  # type: ignore[misc]
        print(json.dumps(told), flush=True)
