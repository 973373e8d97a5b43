"""Asking the HTTP listeners of nodes, for what Kafka's protocol does not tell."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import click

from strandline.proto.json_text import read_json

TIMEOUT_S = 10.0

F = TypeVar("F", bound=Callable[..., Any])


class Sample(NamedTuple):
    """One number of a node's metrics."""

    name: str
    labels: dict[str, str]
    value: float


def cacert_option(command: F) -> F:
    """``--cacert FILE``; the command takes it as `cacert`."""
    return click.option(
        "--cacert",
        type=click.Path(exists=True, dir_okay=False),
        help="A PEM file of the CAs that https:// nodes are trusted by; without it those of the system.",
    )(command)


def http_option(command: F) -> F:
    """``--http HOST:PORT``, repeatable; the command takes them as `http`."""
    return click.option(
        "--http",
        multiple=True,
        metavar="HOST:PORT",
        help="The HTTP listener of a broker (`strandline dev` prints them), for what Kafka's protocol does not tell.",
    )(command)


def ask(node: str, path: str, cacert: str | None, body: bytes | None = None) -> bytes:
    """Answer of the page at `path` of a node's listener.

    Raises:
        click.ClickException: nobody answers there, or something else than a node does.
    """
    url = (node if "://" in node else f"http://{node}").rstrip("/") + path
    try:
        context = ssl.create_default_context(cafile=cacert) if url.startswith("https://") else None
        request = urllib.request.Request(url, body)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context) as response:
            answer = response.read()
    except urllib.error.HTTPError as error:
        raise click.ClickException(
            f"{url} answers {error.code}: {error.read().decode(errors='replace').strip()}"
        ) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise click.ClickException(
            f"{url} cannot be asked ({reason}): is that the HTTP listener of a broker?"
        ) from error
    return bytes(answer)


def ask_json(node: str, path: str, cacert: str | None, body: bytes | None = None) -> dict[str, Any]:
    """Answer of `ask`, parsed, for a page in JSON."""
    try:
        answer = read_json(ask(node, path, cacert, body))
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise click.ClickException(
            f"{node}{path} answers something else than a node does: is that the HTTP listener of a broker?"
        )
    return answer


def metrics_of(node: str, cacert: str | None) -> tuple[int, Iterator[Sample]]:
    """Id of the node, and its metrics."""
    from prometheus_client.parser import text_string_to_metric_families

    node_id = ask_json(node, "/healthz", cacert).get("node_id")
    if not isinstance(node_id, int):
        raise click.ClickException(f"{node} does not say which node it is: is that the HTTP listener of a broker?")
    text = ask(node, "/metrics", cacert).decode()
    return node_id, (
        Sample(sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    )
