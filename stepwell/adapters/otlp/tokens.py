"""The bearer token that requests may have to carry."""

import hmac
from pathlib import Path

from stepwell.exceptions import ConfigurationError

_PREFIX = "Bearer "


class Token:
    """A secret that senders know. It is never shown.

    Args:
        path: file that holds it; white space around it does not count.

    Raises:
        ConfigurationError: the file cannot be read, is empty, or holds no token that a header can carry.
    """

    words = "a header 'authorization: Bearer TOKEN' with the receiver's token is needed"
    """What is said to who does not know it."""

    def __init__(self, path: Path) -> None:
        try:
            text = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"token file {path} cannot be read: {type(error).__name__}") from None
        if not text or not text.isascii() or not text.isprintable() or " " in text:
            raise ConfigurationError(f"token file {path} must hold one word of printable ASCII characters")
        self._secret = (_PREFIX + text).encode()

    def fits(self, authorization: str | bytes | None) -> bool:
        """Whether the value of an authorization header carries the token."""
        given = authorization or b""
        if isinstance(given, str):
            given = given.encode("utf-8", "surrogateescape")  # bytes that are no UTF-8 come as surrogates
        return hmac.compare_digest(given, self._secret)
