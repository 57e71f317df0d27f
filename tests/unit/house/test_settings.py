import json
from pathlib import Path

import pytest

from stepwell.exceptions import ConfigurationError
from stepwell.settings import Origin, Settings, load_settings


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory and an empty user's home."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def write_file(text: str, directory: Path | None = None) -> Path:
    path = (directory or Path.cwd()) / "stepwell.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_defaults_lie_in_the_users_home(place: Path) -> None:
    settings = load_settings()
    assert settings.home == place / ".stepwell"
    assert settings.log == f"local:{place}/.stepwell/log"
    assert settings.database == f"embedded:{place}/.stepwell/database"
    assert all(settings.origin(name) == Origin("default") for name in Settings.model_fields)


def test_log_and_database_follow_the_home(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_HOME", "~/elsewhere")
    settings = load_settings()
    assert settings.home == place / "elsewhere"
    assert settings.log == f"local:{place}/elsewhere/log"
    assert str(settings.origin("home")) == "environment STEPWELL_HOME"
    assert settings.origin("log").kind == "default"


def test_environment_wins_over_file_wins_over_default(monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_file('log = "kafka://from-file:9092"\nstall_after_s = 12\n')
    monkeypatch.setenv("STEPWELL_LOG", "kafka://from-env:9092")
    settings = load_settings()
    assert (settings.log, settings.stall_after_s, settings.seal_grace_s) == ("kafka://from-env:9092", 12.0, 60.0)
    assert settings.origin("log") == Origin("environment", "STEPWELL_LOG")
    assert settings.origin("stall_after_s") == Origin("file", str(path))
    assert settings.origin("seal_grace_s") == Origin("default")


def test_file_in_the_home_directory_is_read_when_there_is_none_here(place: Path) -> None:
    path = write_file("worker_slot = 'east-1'\n", place / ".stepwell")
    settings = load_settings()
    assert settings.worker_slot == "east-1"
    assert settings.origin("worker_slot") == Origin("file", str(path))
    write_file("worker_slot = 'here'\n")
    assert load_settings().worker_slot == "here"


@pytest.mark.parametrize(
    ("variable", "near"), [("STEPWELL_LOGS", "STEPWELL_LOG"), ("STEPWELL_DATABSE", "STEPWELL_DATABASE")]
)
def test_unknown_variable_is_refused_with_the_nearest_name(
    variable: str, near: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "x")
    with pytest.raises(ConfigurationError, match=rf"{variable} \(did you mean {near}\?\)"):
        load_settings()


def test_unknown_variable_like_no_other_lists_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_ZZZZZZZZ", "x")
    monkeypatch.setenv("STEPWELL_QQQQQQQQ", "x")
    with pytest.raises(ConfigurationError, match=r"known: .*STEPWELL_DATABASE.*STEPWELL_LOG") as caught:
        load_settings()
    assert str(caught.value).count("known:") == 1
    assert "STEPWELL_QQQQQQQQ; unknown environment variable STEPWELL_ZZZZZZZZ (known" in str(caught.value)


def test_unknown_key_is_refused_with_file_and_nearest_name() -> None:
    path = write_file('databse = "embedded:x"\n')
    with pytest.raises(ConfigurationError) as refused:
        load_settings()
    assert str(refused.value) == f"{path}: unknown key 'databse' (did you mean database?)"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("stall_after_s = '30'", "stall_after_s: Input should be a valid number"),
        ("stall_after_s = true", "stall_after_s: Input should be a valid number"),
        ("worker_slot = 1", "worker_slot: Input should be a valid string"),
        ("database_password_file = 7", "database_password_file: "),
        ("home = '/x'", "home cannot be set in the file; set STEPWELL_HOME"),
        ("debug = true", "debug cannot be set in the file; set STEPWELL_DEBUG"),
        ("log = ", "cannot be read as TOML"),
        ("[log]\nurl = 'x'", "log: Input should be a valid string"),
    ],
)
def test_file_is_read_strictly(text: str, told: str) -> None:
    path = write_file(text)
    with pytest.raises(ConfigurationError) as refused:
        load_settings()
    assert str(refused.value).startswith(f"{path}: {told}")


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("LOG", "kafka:/x", "expected local:DIRECTORY or kafka://host:port"),
        ("LOG", "memory:", "expected local:DIRECTORY"),
        ("LOG", "kafka://one", "broker 'one' is not host:port"),
        ("LOG", "kafka://one:9092,two:99999", "broker 'two:99999' is not host:port"),
        ("LOG", "local:", "local: needs a directory"),
        ("LOG", "local://host/x", "local: needs a directory"),
        ("DATABASE", "mysql://db/x", "expected embedded:DIRECTORY or postgresql://"),
        ("DATABASE", "postgresql://", "names neither a host nor a database"),
        ("STALL_AFTER_S", "0", "greater than 0"),
        ("STALL_AFTER_S", "nan", "finite"),
        ("STALL_AFTER_S", "soon", "valid number"),
        ("LOG_LEVEL", "loud", "'debug', 'info', 'warning' or 'error'"),
        ("WORKER_SLOT", "a b", "match pattern"),
    ],
)
def test_bad_value_names_the_variable_and_what_was_expected(
    name: str, value: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"STEPWELL_{name}", value)
    with pytest.raises(ConfigurationError) as refused:
        load_settings()
    assert str(refused.value).startswith(f"STEPWELL_{name}: ")
    assert told in str(refused.value)


def test_a_stall_must_come_before_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_STALL_AFTER_S", "300")
    with pytest.raises(ConfigurationError, match=r"timeout_after_s \(300\) must be longer than stall_after_s \(300\)"):
        load_settings()


def test_all_wrong_values_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_LOG", "x")
    monkeypatch.setenv("STEPWELL_LOG_LEVEL", "x")
    with pytest.raises(ConfigurationError, match=r"STEPWELL_LOG: .*; STEPWELL_LOG_LEVEL: "):
        load_settings()


@pytest.mark.parametrize(
    "url", ["mysql://ops:hunter2@db/x", "postgresql://ops:hunter2@[db/x", "kafka://ops:hunter2@db:x"]
)
def test_a_refused_url_does_not_show_its_password(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_DATABASE", url)
    monkeypatch.setenv("STEPWELL_LOG", url)
    with pytest.raises(ConfigurationError) as refused:
        load_settings()
    assert "hunter2" not in str(refused.value)


def test_password_comes_from_a_file_and_is_never_shown(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "password").write_text("hunt@r/2\n")
    monkeypatch.setenv("STEPWELL_DATABASE", "postgresql://ops@db:5432/stepwell")
    monkeypatch.setenv("STEPWELL_DATABASE_PASSWORD_FILE", str(place / "password"))
    settings = load_settings()
    assert settings.database == "postgresql://ops:hunt%40r%2F2@db:5432/stepwell"
    assert settings.shown("database") == "postgresql://ops:***@db:5432/stepwell"
    assert settings.shown("database_password_file") == str(place / "password")
    assert "hunt" not in repr(settings) + str(settings) + json.dumps([settings.shown(n) for n in Settings.model_fields])


@pytest.mark.parametrize(
    ("url", "password", "told"),
    [
        ("embedded:x", "p", "the database is embedded:"),
        ("postgresql://ops:one@db/x", "p", "keep one"),
        ("postgresql://db/x", "p", "needs a user"),
        ("postgresql://ops@db/x", "\n", "is empty"),
        ("postgresql://ops@db/x", None, "cannot be read: FileNotFoundError"),
    ],
)
def test_password_file_that_does_not_fit(
    url: str, password: str | None, told: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if password is not None:
        (place / "password").write_text(password)
    monkeypatch.setenv("STEPWELL_DATABASE", url)
    monkeypatch.setenv("STEPWELL_DATABASE_PASSWORD_FILE", str(place / "password"))
    with pytest.raises(ConfigurationError, match=told):
        load_settings()


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_settings().log = "kafka://x:1"  # type: ignore[misc]


@pytest.mark.parametrize(
    "name", ["STEPWELL_SERVICE_HOST", "STEPWELL_SERVICE_PORT_HTTP", "STEPWELL_PORT", "STEPWELL_PORT_80_TCP_ADDR"]
)
def test_what_kubernetes_puts_into_every_container_is_no_setting(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "10.0.0.1")
    load_settings()


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("registry:8081", "expected http://host:port"),
        ("http://", "expected http://host:port"),
        ("http://host:port", "expected http://host:port"),
        ("http://ci:geheim@host:8081", "put user and password into a file"),
    ],
)
def test_registry_url_is_checked(url: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_SCHEMA_REGISTRY", url)
    with pytest.raises(ConfigurationError, match=told) as caught:
        load_settings()
    assert "geheim" not in str(caught.value)


def test_an_empty_registry_is_none_whatever_the_file_says(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file('schema_registry = "http://registry:8081"\nschema_registry_credentials_file = "/nowhere"\n')
    assert load_settings().schema_registry == "http://registry:8081"
    monkeypatch.setenv("STEPWELL_SCHEMA_REGISTRY", "")
    monkeypatch.setenv("STEPWELL_SCHEMA_REGISTRY_CREDENTIALS_FILE", "")
    settings = load_settings()
    assert settings.schema_registry is None
    assert settings.schema_registry_credentials() == ""
    assert str(settings.origin("schema_registry")) == "environment STEPWELL_SCHEMA_REGISTRY"


def test_registry_credentials_come_from_a_file(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_SCHEMA_REGISTRY_CREDENTIALS_FILE", str(place / "credentials"))
    with pytest.raises(ConfigurationError, match="schema_registry is not"):
        load_settings()
    monkeypatch.setenv("STEPWELL_SCHEMA_REGISTRY", "https://registry:8081/")
    settings = load_settings()
    assert settings.schema_registry == "https://registry:8081"
    with pytest.raises(ConfigurationError, match="cannot be read"):
        settings.schema_registry_credentials()
    for text in ("ci\n", ":pw", "ci:\n", "ci:pw\nmore\n"):
        (place / "credentials").write_text(text)
        with pytest.raises(ConfigurationError, match="one line, user:password"):
            settings.schema_registry_credentials()
    (place / "credentials").write_text("ci:p:w\n")
    assert settings.schema_registry_credentials() == "ci:p:w"
