"""What the search index finds.

python search.py index 'boeing 737'
"""

from __future__ import annotations

import sys

from tantivy import Index


def search(path: str, words: str, limit: int = 5) -> list[str]:
    """The best documents that have all the words, as they were in the log."""
    index = Index.open(path)
    searcher = index.searcher()
    hits = searcher.search(index.parse_query(words, ["text"], conjunction_by_default=True), limit).hits
    return [bytes(searcher.doc(address).to_dict()["source"][0]).decode() for _score, address in hits]


if __name__ == "__main__":
    path, words = sys.argv[1:]
    sys.stdout.writelines(f"{hit}\n" for hit in search(path, words))
