"""Schedule 69: a call that created a topic is carried out again when the topic is deleted."""

from __future__ import annotations

from itertools import product
from uuid import UUID

from tests.chaos.site import Site
from tests.schedules.helpers import schedule


def _topic_id(site: Site) -> UUID | None:
    image = site.cluster.newest_image()
    topic = None if image is None else image.topics.get("t")
    return None if topic is None else topic.topic_id


def _repeat_calls(site: Site, probability: float) -> None:
    cluster = site.cluster
    for broker, controller in product(cluster.brokers, cluster.controllers):
        site.world.network.link(broker, controller).repeat_probability = probability


@schedule(69, rule="A16: no topic has the id of a deleted one", mutant="topic-id-is-used-again")
def test_69_a_creation_comes_again_after_the_deletion() -> None:
    """The network delivers the creation of t a second time, seconds late. Meanwhile t was written to and deleted. A
    topic of that name comes into being, as it does with Kafka, but not the one that was deleted: its brokers would lead
    an empty log in the epoch in which they had committed records."""

    async def story(site: Site) -> None:
        _repeat_calls(site, 1.0)
        await site.create("t", min_insync_replicas="2")
        _repeat_calls(site, 0.0)
        old = _topic_id(site)
        await site.send(site.cluster.bootstrap, "t", 0, 5)
        site.cluster.inspect()

        await site.admin(lambda admin: admin.delete_topics(["t"]))
        await site.until(lambda: _topic_id(site) is None, "the topic is gone", within_ms=5_000)
        await site.until(lambda: _topic_id(site) is not None, "it is there again", within_ms=5_000)
        assert _topic_id(site) != old
        await site.cluster.wait_in_sync(10_000)
        site.cluster.inspect()
        assert await site.read("t") == []

    Site(2, split=True).play(story)
