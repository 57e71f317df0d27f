"""``stepwell topics``: make the log's topics, look at them, and check how they are set up."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from stepwell.cli.resources import opened_log
from stepwell.cli.tables import console

if TYPE_CHECKING:
    from stepwell.engine.ports import Admin
    from stepwell.events.topics import Topic


def register(app: typer.Typer) -> None:
    """Add ``stepwell topics create | check | list``."""
    topics = typer.Typer(help="Make the log's topics, look at them, check their settings.", no_args_is_help=True)
    topics.command("create")(create)
    topics.command("check")(check)
    topics.command("list")(list_)
    app.add_typer(topics, name="topics")


def create(
    replication: Annotated[
        int | None,
        typer.Option(min=1, help="Copies of each partition (Kafka). Default: 3, or as many as there are brokers."),
    ] = None,
) -> None:
    """Make the topics that are missing, with the right settings. Existing ones are left as they are."""
    from stepwell.events.topics import TOPICS

    with _admin(must_exist=False) as (admin, place):
        created = set(_create(admin, replication, place))
        for topic in TOPICS:
            print(f"{topic.name}: {'made' if topic.name in created else 'was there'}")
        print(f"{len(created)} of {len(TOPICS)} topics made on {place}.")


def _create(admin: "Admin", replication: int | None, place: str) -> list[str]:
    from stepwell.events.topics import TOPICS
    from stepwell.exceptions import ConfigurationError

    if replication is None:
        return admin.create(TOPICS)
    if not place.startswith("kafka://"):
        raise ConfigurationError(f"--replication is for Kafka; the log {place} has one copy. Leave the option out.")
    from stepwell.adapters.logs.kafka_admin import KafkaAdmin

    assert isinstance(admin, KafkaAdmin)
    return admin.create(TOPICS, replication)


def check() -> None:
    """Compare existing topics with what Stepwell needs. Exit code 1 when something is wrong; nothing is changed."""
    from stepwell.events.topics import TOPICS

    with _admin() as (admin, place):
        wrong = admin.check(TOPICS)
        for sentence in wrong:
            print(sentence)
        if wrong:
            print(f"{len(wrong)} thing(s) to put right on {place}.")
            raise typer.Exit(1)
        print(f"All {len(TOPICS)} topics on {place} are set up as they must be.")


def list_() -> None:
    """Show each topic: partitions, records kept, and what it is for."""
    from rich.table import Table

    from stepwell.events.topics import TOPICS

    with _admin() as (admin, place):
        table = Table(title=f"Topics on {place}", box=None, pad_edge=False, title_justify="left")
        table.add_column("topic", no_wrap=True, style="bold")
        for name in ("partitions", "first offset", "end"):
            table.add_column(name, justify="right")
        table.add_column("keeps", no_wrap=True)
        table.add_column("key", overflow="fold", min_width=7)
        for topic in TOPICS:
            table.add_row(topic.name, *_figures(admin, topic), _keeps(topic), topic.key)
        console().print(table)


def _figures(admin: "Admin", topic: "Topic") -> tuple[str, str, str]:
    """Partitions, and first and end offset summed over them (Kafka's include transaction markers)."""
    from stepwell.exceptions import TopicError

    try:
        marks = admin.watermarks(topic.name).values()
    except TopicError:
        return ("missing", "-", "-")
    return (str(len(marks)), str(sum(mark.low for mark in marks)), str(sum(mark.high for mark in marks)))


def _keeps(topic: "Topic") -> str:
    if topic.compacted:
        return "last of each key"
    if topic.retention_ms < 0:
        return "for ever"
    return f"{topic.retention_ms / 86_400_000:g} days"


@contextmanager
def _admin(*, must_exist: bool = True) -> "Iterator[tuple[Admin, str]]":
    """An admin of the configured log, and the log's name for messages."""
    from stepwell.settings import get_settings

    place = get_settings().log
    with opened_log(place, must_exist=must_exist) as log, closing(log.admin()) as admin:
        yield admin, place
