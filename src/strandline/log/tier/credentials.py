"""What the library `obstore` fails with, in words: of a store without credentials it names the address of the machine's
own role, and an endpoint that is no URL makes it panic.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class _Kind(NamedTuple):
    """Of stores.

    Attributes:
        role: a piece of the address at which the machine's own role is asked for, and of errors about it.
        looked_for: where credentials are looked for, the environment first.
        not_read: where others look, and obstore does not.
    """

    role: tuple[str, ...]
    looked_for: str
    not_read: str


_KINDS = (
    _Kind(
        ("/latest/api/token", "/latest/meta-data/iam"),
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (AWS_SESSION_TOKEN with them), or AWS_WEB_IDENTITY_TOKEN_FILE and "
        "AWS_ROLE_ARN, in the environment; aws_access_key_id and aws_secret_access_key among the options of the store",
        "Profiles (~/.aws, AWS_PROFILE) are not read. A public bucket: aws_skip_signature=true",
    ),
    _Kind(
        ("computeMetadata", "metadata.google.internal"),
        "GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT (a file), GOOGLE_SERVICE_ACCOUNT_KEY, in the "
        "environment; google_service_account among the options of the store; the file that `gcloud auth "
        "application-default login` writes",
        "A public bucket: google_skip_signature=true",
    ),
    _Kind(
        ("/metadata/identity/oauth2/token", "Account must be specified"),
        "AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY (or AZURE_STORAGE_SAS_TOKEN, or AZURE_CLIENT_ID, "
        "AZURE_CLIENT_SECRET and AZURE_TENANT_ID) in the environment; azure_storage_account_name and the like among "
        "the options of the store",
        "A public container: azure_skip_signature=true",
    ),
)


def explained(why: str) -> str:
    """What a store said; where it found no credentials, which ones are looked for, and where."""
    for kind in _KINDS:
        if any(piece in why for piece in kind.role):
            return (
                f"no credentials. They are looked for here: {kind.looked_for}; then the machine's own role counts. "
                f"{kind.not_read}. The last attempt: {why}"
            )
    return why


_PANICS = ("PanicException", "RustPanic")
"""Names of what the library raises for an endpoint that is no URL: from a call, and from one that is awaited. The first
is no Exception, and neither can be imported."""


def in_words(error: BaseException) -> str:
    """An error of the library as a user gets to see it: its first line, without the query of a URL, which may hold a
    signature."""
    line = re.sub(r"\?\S*", "?...", str(error).partition("\n")[0])[:500]
    return f"{line} (is the endpoint a URL?)" if is_panic(error) else explained(line)


def is_panic(error: BaseException) -> bool:
    """Whether the library panicked."""
    return type(error).__name__ in _PANICS
