"""Write the generated parts of the documentation anew (tests/test_docs.py fails where they are stale).

A generated part stands between `<!-- NAME: ... -->` and `<!-- /NAME -->`; a generated page is whole; of rules.md some
lines and cells are generated.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import heart
import measure
import rules_page
import walk

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent))  # the lab is not installed


def parts() -> Iterator[tuple[str, str, Callable[[], str]]]:
    """(page, name of the part, its generator)."""
    from lab.durations import slowest_table
    from lab.pages.access import access_table
    from lab.pages.apis import api_table
    from lab.pages.levels import formats_table, levels_table
    from lab.pages.mutants import mutants_table
    from lab.pages.settings import quotas_table, settings_table, sink_options_table, source_options_table
    from lab.pages.states import group_states, invariants_table, quorum_states, replica_states

    yield "../README.md", "heart", heart.heart
    yield "client-settings.md", "settings", settings_table
    yield "spark.md", "options", source_options_table
    yield "spark.md", "sink-options", sink_options_table
    yield "protocol.md", "apis", api_table
    yield "upgrade.md", "levels", levels_table
    yield "storage.md", "formats", formats_table
    yield "security.md", "access", access_table
    yield "security.md", "quotas", quotas_table
    yield "mutants.md", "mutants", mutants_table
    yield "testing.md", "slowest", slowest_table
    yield "tour.md", "walk", walk.walk_table
    yield "design.md", "rooms", measure.rooms_diagram
    yield "states.md", "quorum", quorum_states
    yield "states.md", "replica", replica_states
    yield "states.md", "group", group_states
    yield "states.md", "invariants", invariants_table


def whole_pages() -> Iterator[tuple[str, Callable[[], str]]]:
    """(page, its generator)."""
    from lab.pages.commands import command_page
    from lab.pages.configuration import configuration_page
    from lab.pages.settings import typed_settings

    yield "configuration.md", configuration_page
    yield "cli.md", command_page
    yield "../src/strandline/client/settings.py", typed_settings


def rendered(page: str, name: str, text: str) -> str:
    """The page with the part set to `text`."""
    body = (DOCS / page).read_text()
    pattern = re.compile(rf"(<!-- {name}: [^>]*-->\n).*?(<!-- /{name} -->)", re.DOTALL)
    if not pattern.search(body):
        raise ValueError(f"{page} has no part named {name}")
    return pattern.sub(lambda match: match.group(1) + text.rstrip("\n") + "\n" + match.group(2), body)


def stale() -> list[str]:
    """Pages whose generated parts are not what the code says."""
    found = [page for page, name, text in parts() if rendered(page, name, text()) != (DOCS / page).read_text()]
    found += [page for page, text in whole_pages() if text() != (DOCS / page).read_text()]
    rules = (DOCS / "rules.md").read_text()
    return [*found, "rules.md"] if rules_page.filled(rules) != rules else found


def main() -> None:
    """Write every part that is stale."""
    for page, name, text in parts():
        (DOCS / page).write_text(rendered(page, name, text()))
    for page, whole in whole_pages():
        (DOCS / page).write_text(whole())
    rules = DOCS / "rules.md"
    rules.write_text(rules_page.filled(rules.read_text()))


if __name__ == "__main__":
    main()
