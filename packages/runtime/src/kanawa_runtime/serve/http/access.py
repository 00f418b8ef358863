"""Who may use a server: clients' keys, and the host names of a server that listens on its own machine alone.

Keys are compared in constant time, stored as digests, never logged. A page of another site can have its own name lead
to 127.0.0.1, and then reads whatever a server there answers, unless the server looks at the name.
"""

import hashlib
import hmac
import ipaddress
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from kanawa.errors import UsageError
from kanawa.guarded_read import guarded_bytes

from kanawa_runtime.serve.http.errors import ApiError, shown

#: Variables with keys, beside files; a command line shows them to every user of the machine.
API_KEYS, ADMIN_KEY = "KANAWA_API_KEYS", "KANAWA_ADMIN_KEY"
_MAX_BYTES = 2**20


class Keys:
    """The keys of clients and of administrators; without any of the first, no client needs one."""

    def __init__(self, api: Sequence[str] = (), admin: Sequence[str] = ()) -> None:
        """Takes keys, each maybe followed by " weight=N": its client's share of the engine beside those of others."""
        weighted = [_weighted(key) for key in (*api, *admin)]
        self._api = [_digest(key) for key, _ in weighted[: len(api)]]
        self._admin = [_digest(key) for key, _ in weighted[len(api) :]]
        self._weights = {_digest(key).hex(): weight for key, weight in weighted}

    @property
    def are_required(self) -> bool:
        """Whether clients need one."""
        return bool(self._api)

    def weight_of(self, key: str) -> int:
        """Returns the weight of a key's digest; 1 of a client without one."""
        return self._weights.get(key, 1)

    def check_key(self, headers: Mapping[str, str], *, admin: bool = False) -> str | None:
        """Returns the digest of a request's key, None where none is needed.

        Raises the 401 of a request without a key that it needs, the 403 where the server has none to show.
        """
        wanted = self._admin if admin else self._api
        if admin and not wanted:
            message = f"this needs an administrator's key, and the server has none: start it with {ADMIN_KEY} set"
            raise ApiError(403, message, code="no_admin_key")
        if not wanted:
            return None
        kind, _, key = headers.get("authorization", "").partition(" ")
        # The second header is that of clients of the training service.
        key = key.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "").strip()
        digest = _digest(key) if key else b""
        # All are compared, each in constant time, so that the time says nothing about the keys.
        if sum(hmac.compare_digest(digest, known) for known in (*wanted, *self._admin)):
            return digest.hex()
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
        text = guarded_bytes(file, most=_MAX_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        message = f"can't read keys from {file}: {error}; write one a line"
        raise UsageError(message) from error
    listed = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if not listed:
        message = f"{file} holds no key; write one a line, for instance: openssl rand -hex 32 > {file}"
        raise UsageError(message)
    return keys + listed


def _weighted(line: str) -> tuple[str, int]:
    """Returns a key and its weight; raises UsageError for a weight that is none, without the key."""
    key, mark, weight = line.partition(" weight=")
    if not mark:
        return line, 1
    if not weight.strip().isdecimal() or int(weight) < 1:
        message = f"a key has the weight {weight.strip()!r}, expected a whole number from 1: KEY weight=4"
        raise UsageError(message)
    return key.strip(), int(weight)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


class Hosts:
    """The names that requests may be for; all of them where other machines reach the server, or keys are required."""

    def __init__(self, address: str, further: Sequence[str] = (), *, with_keys: bool = False) -> None:
        """Takes the address that the socket is bound to."""
        self._any = with_keys or not is_loopback(address)
        self._names = {"localhost", address, *further}

    def check_host(self, headers: Mapping[str, str]) -> None:
        """Raises the 403 of a request for another name."""
        # Browsers always name one.
        if self._any or "host" not in headers:
            return
        host = headers["host"]
        name = host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]
        if name not in self._names and not is_loopback(name):
            message = (
                f"Host is {shown(host)}, and this server is for its own machine alone: ask for localhost, name the "
                "host in server.allowed_hosts, or start the server with keys"
            )
            raise ApiError(403, message, param="Host", code="host_not_allowed")


def is_loopback(host: str) -> bool:
    """Returns whether an address is reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
