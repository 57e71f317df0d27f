import pytest

from stepwell.redaction import HIDDEN, is_secret_key, redact_secret, redact_text, redact_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ops:hunter2@db:5432/stepwell", "postgresql://ops:***@db:5432/stepwell"),
        ("postgresql://ops:p%40ss@db/stepwell?sslmode=require", "postgresql://ops:***@db/stepwell?sslmode=require"),
        ("postgresql://ops:hunter/2@1@db/stepwell", "postgresql://ops:***@db/stepwell"),
        ("postgresql://ops:a?b#c@db/x", "postgresql://ops:***@db/x"),
        ("postgresql://ops:hun ter2@db/x", "postgresql://ops:***@db/x"),
        ("postgresql://ops:h@n, t'er 2@db/x", "postgresql://ops:***@db/x"),
        ("host=db password='hun ter2", "host=db password=***"),
        ("postgresql://:hunter2@db/x", "postgresql://:***@db/x"),
        (
            "postgresql://db/x?user=ops&password=hunter2&sslmode=require",
            "postgresql://db/x?user=ops&password=***&sslmode=require",
        ),
        ("postgresql://db/x?sslpassword=hunter2", "postgresql://db/x?sslpassword=***"),
        ("kafka://ops:hunter2@one:9092,two:9092", "kafka://ops:***@one:9092,two:9092"),
        ("postgresql://ops@db/x", "postgresql://ops@db/x"),
        ("kafka://one:9092,two:9092", "kafka://one:9092,two:9092"),
        ("local:/var/lib/log", "local:/var/lib/log"),
        ("", ""),
    ],
)
def test_passwords_in_urls_are_hidden(url: str, shown: str) -> None:
    assert redact_url(url) == shown


def test_passwords_in_running_text_are_hidden() -> None:
    text = "could not reach postgresql://a:one@h1/x nor 'postgresql://b:two@h2/y' (host=h3 password='th ree' user=c)"
    shown = redact_text(text)
    assert not {"one", "two", "th ree"} & set(shown.replace(":", " ").replace("@", " ").split())
    assert "th ree" not in shown
    assert shown.count(HIDDEN) == 3
    assert "h1/x" in shown
    assert "user=c" in shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("refused: postgresql://ops:hun ter2@db/x, again", "refused: postgresql://ops:***@db/x, again"),
        ("ask ops@db for http://db:80 and http://db:81/x, or kafka://a:1,b:2; not eve@db", None),
    ],
)
def test_white_space_in_a_password_of_running_text(text: str, shown: str | None) -> None:
    assert redact_text(text) == (shown or text)


@pytest.mark.parametrize(
    "key",
    ["password", "db_password", "PGPASSWORD", "token", "access-token", "client_secret", "secrets", "api_key", "apiKey",
     "Authorization", "sasl.password", "sslpassword", "private_key"],
)  # fmt: skip
def test_secret_keys(key: str) -> None:
    assert is_secret_key(key)


@pytest.mark.parametrize(
    "key", ["path", "key", "database", "database_password_file", "token_count", "task", "passed", "tokenizer", ""]
)
def test_other_keys(key: str) -> None:
    assert not is_secret_key(key)


def test_a_known_secret_is_hidden_in_both_spellings() -> None:
    assert redact_secret("tried p%40ss, then p@ss", "p%40ss") == f"tried {HIDDEN}, then {HIDDEN}"
    assert redact_secret("nothing to hide", None) == "nothing to hide"
