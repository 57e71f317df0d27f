"""Every error that Stepwell raises on purpose.

    StepwellError
    ├── ConfigurationError          a setting, a file or an argument is wrong
    │   └── SpecError               a task spec is wrong: file, line, what was expected
    ├── MissingPartError            an optional part is not installed: says the command that brings it
    ├── EventError                  a record is not an event
    │   ├── UnknownSchemaError      no schema for this id or fingerprint
    │   ├── DecodeError             torn, trailing or hostile bytes; a nonsense head
    │   └── EncodeError             the event does not fit its schema; nothing was written
    ├── SchemaCompatibilityError    a schema changed in a way that old readers or writers cannot bear
    ├── SchemaRegistryError         the schema registry refused, or lacks a schema that is to be written
    ├── LogError                    the message log refused or could not be reached
    │   ├── LogUnavailableError     the log is away; trying again can help        (retriable)
    │   │   ├── StillQueuedError    records are not written yet; flush again, do not send them again
    │   │   └── SchemaRegistryUnavailableError  the registry that names the log's schemas is away
    │   ├── TransactionAbortedError the transaction was rolled back; redo the batch (retriable)
    │   ├── FencedError             another worker took this slot; stop
    │   ├── PositionLostError       a needed offset is below the log's start; never reset silently
    │   └── TopicError              a topic is missing or its settings are wrong
    ├── DatabaseError               the database refused or could not be reached
    │   ├── DatabaseUnavailableError  it is away; trying again can help           (retriable)
    │   │   └── GenerationMovedError  the tables live in another generation now; look anew (retriable)
    │   ├── SinkFencedError         the sink offset moved under us; another projector owns it
    │   ├── MigrationError          the schema's version does not fit this code
    │   └── RebuildError            the tables cannot be made again now; says what to do
    ├── InboxError                  a training service's inbox refused: its disk is full, or its file is damaged
    ├── NotFoundError               no such episode, run, dead letter or trigger
    ├── HostError                   a simulator or policy process failed; says which and how
    └── VerificationError           a refold does not give what was recorded

``retriable`` is a class attribute: whether the same call can succeed later without a change.
"""


class StepwellError(Exception):
    """Stepwell could not do what was asked."""

    retriable = False

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip().splitlines()[0])


class ConfigurationError(StepwellError):
    """A setting, a file or an argument is wrong."""


class SpecError(ConfigurationError):
    """A task spec is wrong."""


class MissingPartError(StepwellError):
    """An optional part is not installed."""


class EventError(StepwellError):
    """A record is not an event.

    ``reason`` is a short stable code (e.g. ``trailing-bytes``): what dead letters are counted and searched by.
    """

    def __init__(self, message: str | None = None, *, reason: str = "invalid-event") -> None:
        super().__init__(message)
        self.reason = reason


class UnknownSchemaError(EventError):
    """No schema is known for the record's id or fingerprint."""


class DecodeError(EventError):
    """The record's bytes do not hold an event."""


class EncodeError(EventError):
    """The event does not fit its schema; nothing was written."""


class SchemaCompatibilityError(EventError):
    """A schema changed in a way that old readers or writers cannot bear."""


class SchemaRegistryError(StepwellError):
    """The schema registry refused the call, or lacks a schema."""


class LogError(StepwellError):
    """The message log refused the call."""


class LogUnavailableError(LogError):
    """The message log cannot be reached now."""

    retriable = True


class StillQueuedError(LogUnavailableError):
    """Records were not written in time; the producer keeps them: flush again, sending again would double them."""


class SchemaRegistryUnavailableError(LogUnavailableError):
    """The schema registry cannot be reached now; a worker waits for it as it waits for the log."""


class TransactionAbortedError(LogError):
    """The transaction was rolled back; the batch must be read and done again."""

    retriable = True


class FencedError(LogError):
    """Another worker took over this slot; this one must stop."""


class PositionLostError(LogError):
    """A needed offset lies below the start of the log."""


class TopicError(LogError):
    """A topic is missing or set up wrongly."""


class DatabaseError(StepwellError):
    """The database refused the call."""


class DatabaseUnavailableError(DatabaseError):
    """The database cannot be reached now."""

    retriable = True


class GenerationMovedError(DatabaseUnavailableError):
    """The tables live in another generation now; homes and positions must be read again."""


class SinkFencedError(DatabaseError):
    """The sink offset moved under us: another projector owns the partition."""


class MigrationError(DatabaseError):
    """The database's schema does not fit this version of Stepwell."""


class RebuildError(DatabaseError):
    """The tables cannot be made again now."""


class InboxError(StepwellError):
    """A training service's inbox cannot be read or written."""


class NotFoundError(StepwellError):
    """There is no such thing."""


class HostError(StepwellError):
    """A simulator or policy process failed."""


class VerificationError(StepwellError):
    """A refold does not give what was recorded."""
