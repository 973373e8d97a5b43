"""The stage of the voter sets: the one function that makes the next set of the one before, in etcd's manner."""

from __future__ import annotations

from uuid import UUID

from strandline.controller.raft.membership import ChangeKind, VoterChange, changed
from strandline.controller.raft.messages import ReplicaKey, VotersChange
from strandline.proto.errors import KafkaError
from strandline.proto.ids import Endpoint, NodeId


class VotersStage:
    """Carries out `voters`, `static`, `add`, `remove` and `update`; a voter is written NODE/DIRECTORY@HOST:PORT."""

    def __init__(self) -> None:
        self.said = VotersChange((), 1, ())

    def command(self, line: str) -> list[str]:
        name, *words = line.split()
        if name in ("voters", "static"):
            voters = [_voter(word) for word in words]
            keys = tuple(key for key, _ in voters)
            endpoints = tuple(at for _, at in voters if at is not None)
            self.said = VotersChange(keys, int(name == "voters"), endpoints)
            return [self.shown()]
        key, endpoint = _voter(words[0])
        try:
            said = changed(self.said, VoterChange(ChangeKind(name), key, endpoint))
        except KafkaError as error:
            return [f"{error.code.name}: {error.message}"]
        if said is None:
            return ["it is so already"]
        before, self.said = self.said, said
        majority = len(before.voters) // 2 + 1 + len(said.voters) // 2 + 1
        everybody = len({*before.voters, *said.voters})
        assert majority > everybody, "a majority of the one set and one of the other need not meet"
        return [self.shown()]

    def shown(self) -> str:
        ats = self.said.endpoints or [None] * len(self.said.voters)
        named = [
            f"{key.node_id}/{key.directory_id.int if key.directory_id else 'any'}" + (f"@{at}" if at else "")
            for key, at in zip(self.said.voters, ats, strict=True)
        ]
        return f"{len(named)} voters at kraft.version {self.said.kraft_version}: {' '.join(named)}"


def _voter(word: str) -> tuple[ReplicaKey, Endpoint | None]:
    name, _, at = word.partition("@")
    node, _, number = name.partition("/")
    host, _, port = at.rpartition(":")
    key = ReplicaKey(NodeId(int(node)), UUID(int=int(number)) if number else None)
    return key, Endpoint(host, int(port)) if at else None
