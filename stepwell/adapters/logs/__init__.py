"""Message logs: `open_log` picks the one that a URL names."""

from stepwell.engine.ports import MessageLog
from stepwell.exceptions import ConfigurationError, MissingPartError

_FORMS = "local:DIR, kafka://host:port[,host:port], or memory: (unit tests only)"


def open_log(url: str) -> MessageLog:
    """Open the log that a URL names.

    Args:
        url: ``local:DIR`` (a directory on this machine; made, with all topics, when missing),
            ``kafka://host:port[,host:port]``, or ``memory:`` (a new one at each call, for unit tests).

    Raises:
        ConfigurationError: not such a URL, or the directory cannot be used.
        MissingPartError: Kafka is asked for, and its client is not installed.
        LogError: the log is there and cannot be used (see `LocalLog`, `KafkaLog`).
    """
    if url == "memory:":
        from stepwell.adapters.logs.memory import MemoryLog

        return MemoryLog()
    if url.startswith("local:"):
        directory = url.removeprefix("local:")
        if not directory or directory.startswith("//"):
            raise ConfigurationError(f"log {url!r}: a directory must follow, as in local:/var/lib/stepwell/log")
        from stepwell.adapters.logs.local import LocalLog

        return LocalLog(directory)
    if url.startswith("kafka://"):
        return _open_kafka(_bootstrap(url))
    raise ConfigurationError(f"log {_shown(url)!r} is none that Stepwell knows; it must be {_FORMS}")


def _shown(url: str) -> str:
    # What stands before an @ may be a password.
    return url.rpartition("@")[2] if "@" in url else url


def _bootstrap(url: str) -> str:
    servers = url.removeprefix("kafka://").rstrip("/")
    if "@" in servers:
        raise ConfigurationError(
            "a Kafka log's URL holds no user or password; it must be kafka://host:port[,host:port]"
        )
    for server in servers.split(","):
        host, colon, port = server.rpartition(":")
        if not (host and colon and port.isdecimal() and 0 < int(port) < 65536) or any(c in host for c in "/?# "):
            raise ConfigurationError(
                f"log {url!r}: {server!r} is no host:port; it must be kafka://host:port[,host:port]"
            )
    return servers


def _open_kafka(bootstrap: str) -> MessageLog:
    try:
        from stepwell.adapters.logs.kafka import KafkaLog
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("confluent_kafka", "aiokafka"):
            raise
        raise MissingPartError(
            "a Kafka log needs Kafka's client, which is not installed: pip install 'stepwell[kafka]'"
        ) from error
    return KafkaLog(bootstrap)
