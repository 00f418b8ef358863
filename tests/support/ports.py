"""Ports for servers that bind them later, in a process that has yet to start."""

import itertools
import secrets
import socket

#: Below those that the system gives to whoever asks for any: by the time a gang has imported JAX, another test's
#: server or client would have got one of them. Each process of the tests begins at a place of its own.
_FIRST, _COUNT = 12_000, 20_000
_TRIED = itertools.count(secrets.randbelow(_COUNT))


def free_port() -> int:
    """Returns a port of this machine that nothing listens at; never the same one twice. Raises OSError."""
    for number in itertools.islice(_TRIED, _COUNT):
        port = _FIRST + number % _COUNT
        try:
            with socket.socket() as tried:
                tried.bind(("127.0.0.1", port))
        except OSError:
            continue
        return port
    message = f"every port from {_FIRST} to {_FIRST + _COUNT} is taken"
    raise OSError(message)
