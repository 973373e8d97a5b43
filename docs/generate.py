"""Write the generated parts of the documentation anew (tests/test_docs.py fails where they are stale).

A generated part stands between `<!-- NAME: ... -->` and `<!-- /NAME -->`; a generated page is whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

DOCS = Path(__file__).parent


def parts() -> Iterator[tuple[str, str, Callable[[], str]]]:
    """(page, name of the part, its generator)."""
    from strandline.client.config import settings_table
    from strandline.cluster.kafka.docs import api_table
    from strandline.spark.options import options_table

    yield "client.md", "settings", settings_table
    yield "spark.md", "options", options_table
    yield "protocol.md", "apis", api_table


def rendered(page: str, name: str, text: str) -> str:
    """The page with the part set to `text`."""
    body = (DOCS / page).read_text()
    pattern = re.compile(rf"(<!-- {name}: [^>]*-->\n).*?(<!-- /{name} -->)", re.DOTALL)
    if not pattern.search(body):
        raise ValueError(f"{page} has no part named {name}")
    return pattern.sub(lambda match: match.group(1) + text.rstrip("\n") + "\n" + match.group(2), body)


def stale() -> list[str]:
    """Pages whose generated parts are not what the code says."""
    return [page for page, name, text in parts() if rendered(page, name, text()) != (DOCS / page).read_text()]


def main() -> None:
    """Write every part that is stale."""
    for page, name, text in parts():
        (DOCS / page).write_text(rendered(page, name, text()))


if __name__ == "__main__":
    main()
