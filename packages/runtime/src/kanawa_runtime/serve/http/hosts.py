"""Names under which a server that listens to its own machine alone is asked for: any other is a page's doing.

A page of another site can have its own name lead to 127.0.0.1, and then reads whatever a server there answers, unless
the server looks at the name.
"""

import ipaddress
from collections.abc import Mapping, Sequence

from kanawa_runtime.serve.http.errors import ApiError, shown


class Hosts:
    """The names that requests may be for; all of them where other machines reach the server, or keys are asked for."""

    def __init__(self, listens_at: str, further: Sequence[str] = (), *, with_keys: bool = False) -> None:
        """Takes the address that the socket is bound to."""
        self._any = with_keys or not is_loopback(listens_at)
        self._names = {"localhost", listens_at, *further}

    def check(self, headers: Mapping[str, str]) -> None:
        """Raises the 403 of a request for another name."""
        # Whoever names none is no browser: those always do.
        if self._any or "host" not in headers:
            return
        given = headers["host"]
        name = given[1 : given.find("]")] if given.startswith("[") else given.partition(":")[0]
        if name not in self._names and not is_loopback(name):
            message = (
                f"Host is {shown(given)}, and this server is for its own machine alone: ask for localhost, name the "
                "host in server.allowed_hosts, or have the server ask for keys"
            )
            raise ApiError(403, message, param="Host", code="host_not_allowed")


def is_loopback(host: str) -> bool:
    """Returns whether an address is reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
