"""An S3 server in the process of the tests, and the environment that points clients at it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

BUCKET = "lakes"


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """moto's server on a free port, with an empty bucket `BUCKET`; its address."""
    server_module = pytest.importorskip("moto.server", reason="moto is not installed: pip install 'moto[server]'")
    pytest.importorskip("obstore", reason="obstore is not installed: pip install obstore")
    import boto3

    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    client = boto3.client(
        "s3", endpoint_url=address, region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
    )
    client.create_bucket(Bucket=BUCKET)
    yield address
    server.stop()


def s3_environment(address: str) -> dict[str, str]:
    """What a user sets."""
    return {
        "AWS_ENDPOINT_URL": address,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_REGION": "us-east-1",
    }
