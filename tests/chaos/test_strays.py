"""Topics that are deleted while a broker is down: production nodes in virtual time."""

from __future__ import annotations

from strandline.chaos.cluster import DATA
from strandline.client.aio import Admin
from strandline.client.types import NewTopic
from strandline.proto.marks import counts, reset
from tests.chaos.site import Site
from tests.chaos.test_simulated_rows import in_both_layouts
from tests.stage import READY_MS

TOPICS = ("gone", "anew", "kept")
DELAY_MS = 20_000


def directories(site: Site, name: str) -> set[str]:
    """The partitions' directories on a machine."""
    files = site.world.machines[name].disk.files()
    found = {path.removeprefix(f"{DATA}/").partition("/")[0] for path in files if path.endswith(".log")}
    return {name for name in found if name.startswith(TOPICS)}


@in_both_layouts
def test_a_broker_comes_back_after_topics_were_deleted(split: bool, seeds: int) -> None:
    """What it has of them is set aside once it has heard so, and removed; what is still assigned to it stays, however
    old the metadata are that it begins with; a topic made anew under an old name has nothing of the old one."""
    for seed in range(seeds):
        reset()
        site = Site(seed, split, settings={"log.stray.delete.delay.ms": str(DELAY_MS)})
        away = site.cluster.brokers[-1]

        async def story(site: Site, away: str = away) -> None:
            for topic in TOPICS:
                await site.create(topic)
                await site.send(site.cluster.bootstrap, topic, 0, 20)
            site.world.kill(away)
            await site.world.sleep_ms(5_000)
            await site.admin(delete_and_make_anew)
            for topic in ("anew", "kept"):
                await site.send(site.cluster.bootstrap, topic, 20, 25)
            assert directories(site, away) == {f"{topic}-0" for topic in TOPICS}
            site.cluster.start(away)
            await site.cluster.wait_in_sync(READY_MS)
            assert {name.partition(".")[0] for name in directories(site, away) if name.endswith("-stray")} == {
                "gone-0",
                "anew-0",
            }
            await site.world.sleep_ms(DELAY_MS + 5_000)
            assert directories(site, away) == {"anew-0", "kept-0"}
            assert await site.read("anew") == [b"%d" % number for number in range(20, 25)]
            assert await site.read("kept") == [b"%d" % number for number in range(25)]

        site.play(story)
        assert counts()["stray-set-aside"] == 2


async def delete_and_make_anew(admin: Admin) -> None:
    """Delete two of the three, and make one of them anew."""
    await admin.delete_topics(["gone", "anew"])
    await admin.create_topics([NewTopic("anew", 1, 3)])
