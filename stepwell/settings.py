"""What Stepwell is set to, and where each value came from.

Three sources, the strongest first: environment variables (``STEPWELL_LOG``), one optional TOML file (``log = "..."``;
``./stepwell.toml``, else ``$STEPWELL_HOME/stepwell.toml``), the defaults below. A name that none of these knows is an
error, never ignored: a misspelt setting must not quietly leave the default in force.

Only the command line and `stepwell.api` read settings; everything below them takes plain arguments.
"""

import functools
import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import quote, urlsplit, urlunsplit

from pydantic import AfterValidator, Field, PrivateAttr, TypeAdapter, ValidationError, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from stepwell.exceptions import ConfigurationError
from stepwell.projections.upkeep.tuning import Tuning
from stepwell.redaction import is_secret_key, redact_secret, redact_url

__all__ = ["ENV_PREFIX", "Origin", "Settings", "get_settings", "load_settings", "redact_url"]

ENV_PREFIX = "STEPWELL_"
FILE_NAME = "stepwell.toml"
# Needed before the file is found, or read without it.
ENVIRONMENT_ONLY = frozenset({"home", "parts", "debug"})

_HOST_PORT = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):(\d{1,5})")
_LISTEN = re.compile(r"(?:(?:[A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\]):)?(\d{1,5})")
_PORT_MAX = 65535
# Kubernetes tells every container of a service named "stepwell" where it is; those are nobody's settings.
_FROM_ORCHESTRATOR = re.compile(r"STEPWELL_(?:SERVICE_(?:HOST|PORT\w*)|PORT(?:_\d+_(?:TCP|UDP)\w*)?)")
_STRICT = Field(strict=True)
_LOG_FORMS = "local:DIRECTORY or kafka://host:port[,host:port]"
_REGISTRY_FORMS = "http://host:port or https://host:port, with a path where the API has one"
_DATABASE_FORMS = "embedded:DIRECTORY or postgresql://user@host:port/database"


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path.expanduser()))  # noqa: PTH100 (resolve() would follow links)


def _directory_url(url: str, scheme: str) -> str:
    directory = url.removeprefix(f"{scheme}:")
    if not directory or directory.startswith("//"):
        raise ValueError(f"{scheme}: needs a directory, as in {scheme}:/var/lib/stepwell/{scheme}")
    return f"{scheme}:{_absolute(Path(directory))}"


def _check_log(url: str) -> str:
    if url.startswith("local:"):
        return _directory_url(url, "local")
    if url.startswith("kafka://"):
        brokers = url.removeprefix("kafka://").rstrip("/").split(",")
        for broker in brokers:
            match = _HOST_PORT.fullmatch(broker)
            if not match or not 0 < int(match[1]) <= _PORT_MAX:
                # What stands before an @ may be a password.
                raise ValueError(f"broker {broker.rpartition('@')[2]!r} is not host:port")
        return "kafka://" + ",".join(brokers)
    raise ValueError(f"expected {_LOG_FORMS}")


def _check_database(url: str) -> str:
    if url.startswith("embedded:"):
        return _directory_url(url, "embedded")
    if url.startswith(("postgresql://", "postgres://")):
        try:
            parts = urlsplit(url)
            named = parts.hostname or "host=" in parts.query or parts.path.strip("/")
        except ValueError:
            # urllib's message would quote the URL, password and all.
            raise ValueError("this is no valid URL; quote special characters in the password (@ is %40)") from None
        if not named:
            raise ValueError("the URL names neither a host nor a database")
        return url
    raise ValueError(f"expected {_DATABASE_FORMS}")


def _check_registry(url: str) -> str:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        parts, valid = urlsplit(""), False
    if not valid:
        raise ValueError(f"expected {_REGISTRY_FORMS}")
    if parts.username is not None:
        raise ValueError("put user and password into a file, and name it in schema_registry_credentials_file")
    return url.rstrip("/")


def _check_listen(address: str) -> str:
    match = _LISTEN.fullmatch(address)
    if not match or int(match[1]) > _PORT_MAX:
        raise ValueError("expected HOST:PORT, as in 127.0.0.1:9464, or a port alone (this machine only)")
    return address


LogUrl = Annotated[str, AfterValidator(_check_log)]
DatabaseUrl = Annotated[str, AfterValidator(_check_database)]
RegistryUrl = Annotated[str, AfterValidator(_check_registry)]
ListenAddress = Annotated[str, AfterValidator(_check_listen)]
Directory = Annotated[Path, AfterValidator(_absolute)]
Seconds = Annotated[float, Field(gt=0, le=30 * 24 * 3600, allow_inf_nan=False)]
Days = Annotated[float, Field(gt=0, le=36_500, allow_inf_nan=False)]
Retention = Annotated[float, Field(ge=0, le=36_500, allow_inf_nan=False)]
# Empty means none, so that a shell can undo what the file says.
_EMPTY_IS_NONE = frozenset({"schema_registry", "schema_registry_credentials_file"})


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from.

    Attributes:
        kind: ``default``, ``file`` or ``environment``.
        name: the variable or the file and key; empty for a default.
    """

    kind: Literal["default", "file", "environment"]
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".rstrip()


class Settings(BaseSettings):
    """Every setting. Make one with `load_settings` or `get_settings`, which give clear errors and know the origins.

    Fields are also the keys of the TOML file; in the environment they are upper-case with ``STEPWELL_`` before them.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, extra="forbid", frozen=True, validate_default=True, hide_input_in_errors=True
    )

    home: Directory = Field(Path("~/.stepwell"), description="directory for everything that has no place of its own")
    log: LogUrl = Field("", description=f"the message log: {_LOG_FORMS}; default local:HOME/log")
    database: DatabaseUrl = Field("", description=f"the database: {_DATABASE_FORMS}; default embedded:HOME/database")
    database_password_file: Directory | None = Field(
        None, description="file with the database's password, for a URL without one"
    )
    reader_statement_timeout_s: Seconds = Field(
        30.0, description="s after which a reader's statement is ended; set for each reader when it is made one"
    )
    reader_idle_timeout_s: Seconds = Field(
        60.0, description="s after which a reader's session that sits in an open transaction is ended"
    )
    schema_registry: RegistryUrl | None = Field(
        None,
        description="URL of a Confluent-compatible schema registry, whose ids records bear; an empty variable: none",
    )
    schema_registry_credentials_file: Directory | None = Field(
        None, description="file with the schema registry's credentials, user:password; an empty variable: none"
    )
    parts: Directory | None = Field(
        None, description="directory of the parts that tests and demo start (Kafka, TimescaleDB)"
    )

    stall_after_s: Seconds = Field(30.0, description="s without the owed event until an attempt counts as stalled")
    timeout_after_s: Seconds = Field(
        300.0,
        description="s without the owed event until it is declared lost; longer than the longest outage of a site",
    )
    seal_grace_s: Seconds = Field(
        60.0, description="s after the end until an incomplete attempt is sealed all the same"
    )
    chunk_days: Days = Field(
        1.0, description="d of time in one chunk of steps, actions, telemetry or spans (TimescaleDB)"
    )
    compress_after_days: Days = Field(7.0, description="d after its end until a chunk is compressed (TimescaleDB)")
    refresh_window_days: Days = Field(
        70.0, description="d that rows may be late and still be taken into the sums within minutes (TimescaleDB)"
    )
    retention_steps_days: Retention = Field(
        180.0, description="d that steps and actions are kept after the log took them; 0: for ever"
    )
    retention_telemetry_days: Retention = Field(90.0, description="d that points and spans are kept; 0: for ever")
    retention_dead_letters_days: Retention = Field(
        365.0, description="d that dead letters are kept in the database; 0: for ever"
    )
    retention_minutes_days: Retention = Field(
        400.0, description="d that the sums of steps and telemetry by minute are kept; 0: for ever"
    )
    retention_hours_days: Retention = Field(
        0.0, description="d that the sums of steps and telemetry by hour are kept; 0: for ever"
    )

    worker_slot: str = Field(
        "0",
        pattern=r"^[A-Za-z0-9._-]{1,60}$",
        description="stable name of this worker among its kind; a restart under it takes the work back at once",
    )
    worker_listen: ListenAddress | None = Field(
        None, description="HOST:PORT where a worker answers /healthz, /readyz and /metrics; default: nowhere"
    )
    stuck_exit_after_s: Seconds = Field(
        120.0,
        description="s without progress, though there is work, after which a worker ends itself to be started anew; "
        "longer than any single call may last (60 s by default)",
    )

    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least severe message shown")
    log_format: Literal["auto", "console", "json"] = Field(
        "auto", description="auto: readable on a terminal, JSON lines elsewhere"
    )
    debug: bool = Field(False, description="show tracebacks")

    _origins: dict[str, Origin] = PrivateAttr(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _place_in_home(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Log and database lie in the home directory unless said otherwise."""
        values = {name: value for name, value in values.items() if value != "" or name not in _EMPTY_IS_NONE}
        home = _absolute(Path(values.get("home") or cls.model_fields["home"].default))
        return {"log": f"local:{home / 'log'}", "database": f"embedded:{home / 'database'}"} | values

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.timeout_after_s <= self.stall_after_s:
            raise ValueError(
                f"timeout_after_s ({self.timeout_after_s:g}) must be longer than stall_after_s ({self.stall_after_s:g})"
            )
        if self.schema_registry_credentials_file is not None and not self.schema_registry:
            raise ValueError("schema_registry_credentials_file is set, but schema_registry is not")
        try:
            self.tuning()
        except ConfigurationError as error:
            raise ValueError(str(error)) from None
        if self.database_password_file is not None:
            object.__setattr__(self, "database", _with_password(self.database, self.database_password_file))
        return self

    def schema_registry_credentials(self) -> str:
        """``user:password`` for the schema registry; empty for none.

        Raises:
            ConfigurationError: the file cannot be read, or does not hold them.
        """
        path = self.schema_registry_credentials_file
        if path is None:
            return ""
        try:
            credentials = path.read_text(encoding="utf-8").strip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"schema_registry_credentials_file: {path} cannot be read: {type(error).__name__}"
            ) from None
        user, colon, password = credentials.partition(":")
        if not (user and colon and password) or "\n" in credentials:
            raise ConfigurationError(f"schema_registry_credentials_file: {path} must hold one line, user:password")
        return credentials

    def tuning(self) -> Tuning:
        """How the tables are to be kept."""
        return Tuning(**{field.name: getattr(self, field.name) for field in fields(Tuning)})

    def origin(self, name: str) -> Origin:
        """Where the value of this field came from."""
        return self._origins.get(name, Origin("default"))

    def shown(self, name: str) -> Any:
        """The value of this field as it may be printed: text, number, bool or None, without secrets."""
        value = getattr(self, name)
        if is_secret_key(name):
            return redact_secret(str(value), str(value))
        return redact_url(str(value)) if isinstance(value, str | Path) else value

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={self.shown(name)!r}' for name in type(self).model_fields)})"

    __str__ = __repr__

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 (pydantic names it)
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 (pydantic names it)
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 (pydantic names it)
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Environment over what `load_settings` read from the file (handed in as ``init``); no .env files."""
        return env_settings, init_settings


@functools.cache
def get_settings() -> Settings:
    """The settings of this process, read once.

    Raises:
        ConfigurationError: as `load_settings`.
    """
    return load_settings()


def load_settings() -> Settings:
    """Read environment and file.

    Raises:
        ConfigurationError: a name is unknown or a value does not fit; names the variable or file and key, what was
            expected, and the nearest known name. Never quotes a secret.
    """
    _refuse_unknown_variables(os.environ)
    path = _find_file()
    from_file = _read_file(path) if path else {}
    try:
        settings = Settings(**from_file)
    except ValidationError as error:
        raise ConfigurationError("; ".join(_explain(detail, path) for detail in error.errors())) from None
    settings._origins.update(
        {name: _origin_of(name, path if name in from_file else None) for name in Settings.model_fields}
    )
    return settings


def variable_of(name: str) -> str:
    """The environment variable of a field."""
    return ENV_PREFIX + name.upper()


def _origin_of(name: str, path: Path | None) -> Origin:
    if variable_of(name) in os.environ:
        return Origin("environment", variable_of(name))
    return Origin("file", str(path)) if path else Origin("default")


def _refuse_unknown_variables(environ: Mapping[str, str]) -> None:
    known = [variable_of(name) for name in Settings.model_fields]
    unknown = sorted(
        name
        for name in environ
        if name.startswith(ENV_PREFIX) and name not in known and not _FROM_ORCHESTRATOR.fullmatch(name)
    )
    if unknown:
        said = [f"unknown environment variable {name}{_did_you_mean(name, known)}" for name in unknown]
        hint = "" if all("did you mean" in each for each in said) else _known(known)
        raise ConfigurationError("; ".join(said) + hint)


def _did_you_mean(name: str, known: list[str]) -> str:
    # The common prefix would make every variable look like every other.
    near = get_close_matches(name.removeprefix(ENV_PREFIX), [each.removeprefix(ENV_PREFIX) for each in known], n=1)
    if not near:
        return ""
    prefix = ENV_PREFIX if name.startswith(ENV_PREFIX) else ""
    return f" (did you mean {prefix}{near[0]}?)"


def _known(known: list[str]) -> str:
    return f" (known: {', '.join(sorted(known))})"


def _find_file() -> Path | None:
    """``./stepwell.toml``, else the one in the home directory that the environment or the default names."""
    home = _absolute(Path(os.environ.get(variable_of("home")) or Settings.model_fields["home"].default))
    for path in (Path.cwd() / FILE_NAME, home / FILE_NAME):
        if path.is_file():
            return path
    return None


def _read_file(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{path}: cannot be read as TOML: {error}") from None
    fields = Settings.model_fields
    for key, value in values.items():
        if key not in fields:
            known = sorted(set(fields) - ENVIRONMENT_ONLY)
            raise ConfigurationError(f"{path}: unknown key {key!r}{_did_you_mean(key, known) or _known(known)}")
        if key in ENVIRONMENT_ONLY:
            raise ConfigurationError(f"{path}: {key} cannot be set in the file; set {variable_of(key)}")
        # By way of JSON: strict there still takes a string for a path, but neither "30" nor true for a number.
        field = fields[key]
        adapter: TypeAdapter[Any] = TypeAdapter(Annotated[field.annotation, *field.metadata, _STRICT])  # type: ignore[arg-type]
        try:
            adapter.validate_json(json.dumps(value, default=str), strict=True)
        except ValidationError as error:
            raise ConfigurationError(f"{path}: {key}: {_reason(error.errors()[0])}") from None
    return values


def _explain(detail: ErrorDetails, path: Path | None) -> str:
    """One sentence about one refused value, with the place where the user wrote it."""
    if not detail["loc"]:
        return _reason(detail)
    name = str(detail["loc"][0])
    place = variable_of(name) if variable_of(name) in os.environ or path is None else f"{path}: {name}"
    return f"{place}: {_reason(detail)}"


def _reason(detail: ErrorDetails) -> str:
    return redact_url(detail["msg"].removeprefix("Value error, "))


def _with_password(url: str, path: Path) -> str:
    """The database URL with the password from the file."""
    if not url.startswith("postgres"):
        raise ValueError(f"database_password_file is set, but the database is {url.split(':', 1)[0]}:, which has none")
    parts = urlsplit(url)
    if parts.password is not None:
        raise ValueError("the database URL has a password of its own, and database_password_file is set: keep one")
    if not parts.username:
        raise ValueError(
            "database_password_file needs a user in the database URL, as in postgresql://user@host/database"
        )
    try:
        password = path.read_text(encoding="utf-8").strip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"database_password_file: {path} cannot be read: {type(error).__name__}") from None
    if not password:
        raise ValueError(f"database_password_file: {path} is empty")
    user, host = parts.netloc.rsplit("@", 1)
    return urlunsplit(parts._replace(netloc=f"{user}:{quote(password, safe='')}@{host}"))
