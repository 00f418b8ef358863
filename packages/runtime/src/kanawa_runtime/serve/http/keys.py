"""Keys that clients show: compared in constant time, kept as digests, never logged."""

import hashlib
import hmac
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from kanawa.errors import UsageError
from kanawa.guarded_read import guarded_bytes

from kanawa_runtime.serve.http.errors import ApiError

#: Where keys are looked for beside files; a command line shows them to every user of the machine.
API_KEYS, ADMIN_KEY = "KANAWA_API_KEYS", "KANAWA_ADMIN_KEY"
_MOST_BYTES = 2**20


class Keys:
    """The keys of clients and of administrators; without any of the first, everybody is a client."""

    def __init__(self, api: Sequence[str] = (), admin: Sequence[str] = ()) -> None:
        self._api = [_digest(key) for key in api]
        self._admin = [_digest(key) for key in admin]

    @property
    def are_asked_for(self) -> bool:
        """Whether clients need one."""
        return bool(self._api)

    def check(self, headers: Mapping[str, str], *, admin: bool = False) -> None:
        """Raises the 401 of a request without a key that it needs, the 403 of what nobody may do."""
        wanted = self._admin if admin else self._api
        if admin and not wanted:
            message = f"this needs an administrator's key, and the server has none: start it with {ADMIN_KEY} set"
            raise ApiError(403, message, code="no_admin_key")
        if not wanted:
            return
        kind, _, key = headers.get("authorization", "").partition(" ")
        shown = _digest(key.strip()) if kind.lower() == "bearer" else b""
        # All are compared, each in constant time: how long it takes tells nothing.
        if sum(hmac.compare_digest(shown, digest) for digest in (*wanted, *self._admin)):
            return
        message = "the key is missing or wrong: send the header Authorization: Bearer KEY"
        raise ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def keys_from(api_file: Path | None, admin_file: Path | None) -> Keys:
    """Returns the keys in files, one a line, and in the environment; raises UsageError for a file without any."""
    return Keys(_listed(api_file, API_KEYS), _listed(admin_file, ADMIN_KEY))


def _listed(file: Path | None, variable: str) -> list[str]:
    keys = [key.strip() for key in os.environ.get(variable, "").split(",") if key.strip()]
    if file is None:
        return keys
    try:
        text = guarded_bytes(file, most=_MOST_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        message = f"can't read keys from {file}: {error}; write one a line"
        raise UsageError(message) from error
    listed = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if not listed:
        message = f"{file} holds no key; write one a line, for instance: openssl rand -hex 32 > {file}"
        raise UsageError(message)
    return keys + listed


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
