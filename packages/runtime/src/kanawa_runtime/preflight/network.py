"""Whether processes of a gang can find each other: a name that resolves, a port to listen on, a coordinator."""

from __future__ import annotations

import contextlib
import socket

from kanawa.errors import UsageError
from kanawa.plugins import Finding

_SECONDS = 5.0


def findings(coordinator: str = "") -> list[Finding]:
    """Returns what this host's network allows; `coordinator` is the HOST:PORT that processes would get."""
    checks = [check_name(socket.gethostname()), check_listens()]
    return [*checks, check_coordinator(coordinator)] if coordinator else checks


def check_name(name: str) -> Finding:
    """Returns whether this host's own name has an address that others could use."""
    try:
        addresses = sorted({str(info[4][0]) for info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)})
    except OSError as error:
        meaning = "processes with this name as their coordinator can't find it"
        fix = "add it to /etc/hosts or to the name server, or give the coordinator's address as a number"
        return Finding("warning", "host name", f"{name} has no address: {error}", fix, meaning)
    message = f"{name} is {', '.join(addresses)}"
    if all(address.startswith("127.") or address == "::1" for address in addresses):
        meaning = "a coordinator that announces itself by this name is found by its own host alone"
        fix = "give the coordinator's address as a number where a run has several hosts"
        return Finding("warning", "host name", f"{message}: this host alone can reach that", fix, meaning)
    return Finding("ok", "host name", message)


def check_listens() -> Finding:
    """Returns whether a process may listen on a port of all interfaces."""
    try:
        with socket.socket() as server:
            server.bind(("", 0))
            server.listen()
            port = server.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port), _SECONDS):
                return Finding("ok", "ports", f"a process can listen, and be reached on port {port}")
    except OSError as error:
        meaning = "the first process of a gang can't coordinate it"
        return Finding("error", "ports", f"listening fails: {error}", "allow it in the sandbox or firewall", meaning)


def check_coordinator(address: str) -> Finding:
    """Returns whether HOST:PORT answers or, on its own host, is free; raises UsageError for another form."""
    host, _, text = address.rpartition(":")
    if not host or not text.isdigit() or not 0 < int(text) < 65536:
        message = f"--coordinator {address}: expected HOST:PORT, such as 10.0.0.1:8476"
        raise UsageError(message)
    port = int(text)
    with contextlib.suppress(OSError), socket.create_connection((host, port), _SECONDS):
        return Finding("ok", "coordinator", f"{address} answers")
    try:
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind((host, port))
            return Finding("ok", "coordinator", f"{address} is this host's, and free")
    except OSError:
        meaning = "processes wait for it and give up after minutes"
        fix = "start the first process there, or open the port in the firewall"
        return Finding("warning", "coordinator", f"{address} doesn't answer, and is not this host's", fix, meaning)
