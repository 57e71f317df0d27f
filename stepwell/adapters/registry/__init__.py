"""A schema registry that speaks Confluent's API: ids for the wire, and the schemas behind other clients' ids.

`client` is the connection, `schemas` the source of schemas for a codec, `registration` what ``stepwell schemas`` does.
"""

from stepwell.events.codec import Codec

__all__ = ["open_codec"]


def open_codec(url: str | None, credentials: str = "", *, writing: bool) -> Codec:
    """The codec for a log whose schemas stand in the registry at ``url``; the plain one where there is none.

    Args:
        url: where Confluent's API is; None for no registry.
        credentials: ``user:password``; empty for none.
        writing: look up the ids of all current schemas now. Else each is looked up when it is needed.

    Raises:
        MissingPartError: the registry's client is not installed.
        SchemaRegistryError: ``writing``, and schemas are not registered; says the command that registers them.
        SchemaRegistryUnavailableError: ``writing``, and the registry is away.
    """
    if not url:
        return Codec()
    from stepwell.adapters.registry.schemas import RegistrySchemas

    schemas = RegistrySchemas(url, credentials)
    if writing:
        schemas.require_all()
    return Codec(schemas)
