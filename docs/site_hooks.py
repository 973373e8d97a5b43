"""What `make site` does beyond MkDocs: links to files outside of docs/ lead to pages that show those files.

- A file that a page links to, say `../src/strandline/log/segment.py`, gets a page with its text, under `source/`; a
  folder, a list of what is in it. The search leaves these pages out.
- The README and the change log, which stand at the head of the repository, are pages of the site.
- Comments of the pages (`<!-- prints ... -->`) are left out.
"""

from __future__ import annotations

import posixpath
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parent.parent
_LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
_FENCE = re.compile(r"(^[ ]*(?:```|~~~~).*?^[ ]*(?:```|~~~~)[ ]*$)", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
_LANGUAGES = {".py": "python", ".c": "c", ".sh": "sh", ".toml": "toml", ".yml": "yaml", ".yaml": "yaml"}
_AT_THE_HEAD = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "README.md": "start.md"}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the repository's head, and a page for each file and folder that a page links to."""
    for name, uri in _AT_THE_HEAD.items():
        files.append(File.generated(config, uri, content=_with_its_links((ROOT / name).read_text())))
    linked = {
        target
        for file in files.documentation_pages()
        for _, target in _targets(file.src_uri, file.content_string)
        if not target.startswith("docs/") or target.startswith("docs/examples/") or not target.endswith(".md")
    }
    for target in sorted(linked - set(_AT_THE_HEAD)):
        page = File.generated(config, f"source/{target}.md", content=_source_page(target, linked))
        page.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(page)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The text without comments, its links to files leading to their pages."""
    uri = page.file.src_uri
    if uri.startswith("source/"):
        return markdown

    def replaced(match: re.Match[str]) -> str:
        target = _target(uri, match[2])
        if target is None:
            return match[0]
        name = _AT_THE_HEAD.get(target, f"source/{target}.md")
        return match[1] + posixpath.relpath(name, posixpath.dirname(uri) or ".") + match[3]

    parts = _FENCE.split(_without_comments(markdown))
    return "".join(part if number % 2 else _LINK.sub(replaced, part) for number, part in enumerate(parts))


def _without_comments(markdown: str) -> str:
    """Comments hold fences, and fences hold comments: what begins first counts."""
    either = re.compile(f"{_FENCE.pattern}|({_COMMENT.pattern})", re.MULTILINE | re.DOTALL)
    return either.sub(lambda match: match[1] or "", markdown)


def _with_its_links(text: str) -> str:
    """A page of the repository's head as a page of docs/."""
    return _LINK.sub(lambda match: match[1] + _from_docs(match[2]) + match[3], text)


def _from_docs(link: str) -> str:
    return link if "://" in link else link.removeprefix("docs/") if link.startswith("docs/") else f"../{link}"


def _targets(uri: str, text: str) -> list[tuple[str, str]]:
    """(link, path in the repository) of the links of a page that lead out of the pages."""
    parts = _FENCE.split(_without_comments(text))[::2]
    found = [(match[2], _target(uri, match[2])) for part in parts for match in _LINK.finditer(part)]
    return [(link, target) for link, target in found if target is not None]


def _target(uri: str, link: str) -> str | None:
    """The path in the repository to which a link of a page leads; None: it leads to a page, or to the web."""
    if "://" in link or link.startswith(("mailto:", "/")):
        return None
    target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(uri), link))
    inside = target.startswith("docs/") and target.endswith(".md")
    return None if inside or not (ROOT / target).exists() else target


def _source_page(target: str, linked: set[str]) -> str:
    head = f"---\ntitle: {target}\nsearch:\n  exclude: true\n---\n\n# {target}\n\n"
    path = ROOT / target
    if path.is_dir():
        names = sorted(name for name in _tracked() if name.startswith(f"{target.rstrip('/')}/"))
        lines = [_entry(name, target, linked) for name in names]
        return head + "\n".join(lines) + "\n"
    language = _LANGUAGES.get(path.suffix, "text")
    return f"{head}~~~~~~ {{.{language}}}\n{path.read_text()}\n~~~~~~\n"


def _entry(name: str, folder: str, linked: set[str]) -> str:
    shown = name[len(folder.rstrip("/")) + 1 :]
    if name not in linked:
        return f"- `{shown}`"
    return f"- [`{shown}`]({posixpath.relpath(name, posixpath.dirname(folder) or '.')}.md)"


@cache
def _tracked() -> tuple[str, ...]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return tuple(listed.stdout.splitlines())
