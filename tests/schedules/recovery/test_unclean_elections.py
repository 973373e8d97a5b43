"""What an unclean election costs is told before it, and at it."""

from __future__ import annotations

import re

from structlog.testing import capture_logs

from tests.schedules.recovery.ruin import Ruin


def test_the_preview_says_since_when_nothing_is_known() -> None:
    """The leader acknowledges alone, right after its last report, and is gone for good. The preview must not call the
    others complete; and the election that an operator then asks for is in the controller's log."""

    async def story(ruin: Ruin) -> None:
        await ruin.write(0, 10)
        leader = ruin.leader_name
        assert leader is not None
        others = ruin.others(leader)
        ruin.kill(*others)
        await ruin.until(lambda: ruin.partition().isr == (int(leader[1:]),), "the leader is alone")
        await ruin.write(10, 20)
        ruin.kill(leader)
        ruin.start(*others)
        await ruin.until(lambda: ruin.leader_name is None, "the leader is fenced")
        await ruin.nobody_leads(for_ms=5_000)
        preview = await ruin.preview()
        lost = "committed offsets 10 to 19 (10) are lost" in preview
        number = leader[1:]
        assert lost or re.search(f"broker {number}, which had all that was acknowledged,", preview), preview

        await ruin.admin(lambda admin: admin.elect_leaders([("t", 0)], unclean=True))
        await ruin.until(lambda: ruin.leader_name in others, "somebody leads")

    ruin = Ruin(11, split=True)
    ruin.world.loop.observe = None  # acknowledged records are lost here, as the operator accepts
    with capture_logs() as said:
        ruin.play(story, **{"min.insync.replicas": "1"})
    told = [line for line in said if line["event"] == "an unclean election"]
    assert [line["partition"] for line in told] == ["t-0"], said
    assert "was not in sync" in told[0]["cost"]
