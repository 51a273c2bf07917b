"""`CacheKey`: signs the files of the cache, so that a file counts only if somebody who has the key wrote it."""

from __future__ import annotations

__all__ = ["CacheKey"]

import hmac
import os

from pytest_lmgate.errors import ConfigError

VARIABLE = "LMGATE_CACHE_KEY"
_LEAST_BYTES = 16


class CacheKey:
    """A secret key for HMAC-SHA-256 (RFC 2104). It has no readable form, so that no traceback or report can show it.

    Args:
        key: The secret.

    Raises:
        ConfigError: It is too short to be one.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) < _LEAST_BYTES:
            raise ConfigError(
                f"{VARIABLE}: expected a secret of at least {_LEAST_BYTES} bytes, got {len(key)}; make one with "
                '`python -c "import secrets; print(secrets.token_hex(32))"`, or unset the variable to read and write '
                "the cache without signatures"
            )
        self._keyed = hmac.new(key, digestmod="sha256")

    @classmethod
    def from_environment(cls) -> CacheKey | None:
        """Return the key in the environment variable LMGATE_CACHE_KEY, without white space around it; None if not set.

        Raises:
            ConfigError: It is too short.
        """
        given = os.environ.get(VARIABLE)
        return None if given is None else cls(os.fsencode(given.strip()))

    def signature(self, name: str, *body: bytes | memoryview) -> bytes:
        """Return the signature of a file, 64 hexadecimal digits.

        Args:
            name: Name of the file. It is signed too, so that no file can take another one's place.
            body: Its content, in parts.
        """
        keyed = self._keyed.copy()
        keyed.update(os.fsencode(name) + b"\0")
        for part in body:
            keyed.update(part)
        return keyed.hexdigest().encode()

    def fits(self, signature: bytes, name: str, body: bytes) -> bool:
        """Return whether a signature is that of a file."""
        return hmac.compare_digest(signature, self.signature(name, body))
