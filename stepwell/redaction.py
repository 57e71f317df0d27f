"""Hiding secrets in text that people or files will see. Pure, and below every other room: all of them can use it."""

import re
from urllib.parse import unquote

HIDDEN = "***"

# A key with one of these words in it holds a secret, whatever stands before it ("kafka_sasl_password").
_WORDS = "pass(?:word|wd|phrase)? pwd secret token (?:api|access|private)[-_]?key credentials? authorization"
_SECRET_WORD = f"(?:{_WORDS.replace(' ', '|')})"
_SECRET_KEY = re.compile(rf"(?:^|[-_.])(?:\w*?){_SECRET_WORD}s?(?:$|[-_.])", re.IGNORECASE)
# Keys that only say where a secret lies, or that there is one.
_HARMLESS_KEY = re.compile(r"[-_](?:file|path|dir|name|count|hash|env)$", re.IGNORECASE)

# user:password@ after "://". The password may hold "/" or "@" where somebody forgot to quote them, so everything up to
# the last "@" before white space, a quote or a comma goes.
_URL_HEAD = r"(?P<head>\b[a-z][a-z0-9+.\-]*://[^\s/?#:@\"']*)"
_URL_CREDENTIALS = re.compile(rf"{_URL_HEAD}:(?P<password>[^\s\"',]*)@", re.IGNORECASE)
# Where the whole text is one URL, nothing ends the password but the last "@".
_WHOLE_URL_CREDENTIALS = re.compile(rf"\s*{_URL_HEAD}:.*@", re.IGNORECASE | re.DOTALL)
# In running text white space may end the URL or be in its password. After what can only be a port it ends it.
_SPACED_CREDENTIALS = re.compile(rf"{_URL_HEAD}:(?!\d+(?:[/?#,\s]|$))[^\n\"'@]*@", re.IGNORECASE)
# password=... in a query string or in a libpq connection string, where quoted values may hold spaces.
_PARAMETER = re.compile(
    rf"""(?P<key>\b[\w.\-]*{_SECRET_WORD}) (?P<equals>\s*=\s*)
         (?: '(?:[^'\\]|\\.)*(?:'|$) | "(?:[^"\\]|\\.)*(?:"|$) | [^\s&;,'"]+ )""",
    re.IGNORECASE | re.VERBOSE,
)


def is_secret_key(key: str) -> bool:
    """Whether a value under this key must not be shown."""
    return bool(_SECRET_KEY.search(key)) and not _HARMLESS_KEY.search(key)


def redact_text(text: str) -> str:
    """The text with passwords in URLs and ``password=...`` parameters replaced by ``***``."""
    if "@" in text and "://" in text:
        text = _URL_CREDENTIALS.sub(_redact_credentials, text)
        text = _SPACED_CREDENTIALS.sub(_redact_credentials, text)
    if "=" in text:
        text = _PARAMETER.sub(_redact_parameter, text)
    return text


def redact_url(url: str) -> str:
    """The URL as it may be shown: user, host, path and harmless parameters stay, passwords become ``***``.

    Works on any text; text that is no URL comes back with its ``password=...`` parameters hidden, else unchanged.
    """
    if match := _WHOLE_URL_CREDENTIALS.match(url):
        url = _redact_credentials(match) + url[match.end() :]
    return redact_text(url)


def redact_secret(text: str, secret: str | None) -> str:
    """The text with every occurrence of one known secret hidden, quoted (``%40``) or not."""
    for form in {secret or "", unquote(secret or "")} - {""}:
        text = text.replace(form, HIDDEN)
    return text


def _redact_credentials(match: re.Match[str]) -> str:
    return f"{match['head']}:{HIDDEN}@"


def _redact_parameter(match: re.Match[str]) -> str:
    if _HARMLESS_KEY.search(match["key"]):
        return match[0]
    return f"{match['key']}{match['equals']}{HIDDEN}"
