"""An S3 server in the process of the tests, and the environment that points clients at it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.s3_server import served_s3

BUCKET = "lakes"


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """Address of an S3 server with an empty bucket `BUCKET`."""
    pytest.importorskip("obstore", reason="obstore is not installed: pip install obstore")
    import boto3

    with contextmanager(served_s3)() as address:
        client = boto3.client(
            "s3", endpoint_url=address, region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
        )
        client.create_bucket(Bucket=BUCKET)
        yield address


def s3_environment(address: str) -> dict[str, str]:
    """What a user sets."""
    return {
        "AWS_ENDPOINT_URL": address,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_REGION": "us-east-1",
    }
