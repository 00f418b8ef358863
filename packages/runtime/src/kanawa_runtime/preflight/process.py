"""The process that a run would be: its limits and variables, the devices it gets, and how a gang finds each other."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from kanawa.errors import UsageError
from kanawa.plugins import Finding

from kanawa_runtime.preflight.file_system import judged

_FILES_WANTED = 4096
_SHARED_BYTES_WANTED = 2**30
_START_SECONDS = 60
_SECONDS = 5.0
#: Variables with which a program is right and slow, or other than it would be, with what they do.
_ODD = {
    "JAX_DISABLE_JIT": "nothing is compiled: every operation runs by itself",
    "JAX_ENABLE_X64": "numbers are 64 bits wide where a program doesn't say: twice the memory, no matrix units",
    "JAX_DEBUG_NANS": "every step waits for its result, and a NaN ends the run",
    "JAX_DEFAULT_MATMUL_PRECISION": "products are computed in another precision than the experiment was measured with",
    "XLA_PYTHON_CLIENT_ALLOCATOR": "memory is allocated anew for every array, or shared with others",
}
_OFF = ("", "0", "false", "False", "off")


def findings(coordinator: str = "") -> list[Finding]:
    """Returns what this host's network, limits and variables do to a run; `coordinator` is HOST:PORT, or empty."""
    found = [check_name(socket.gethostname()), check_listens()]
    found += [check_coordinator(coordinator)] if coordinator else []
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    found += [check_open_files(soft), *check_shared_memory(Path("/dev/shm"))]
    return [*found, *check_variables(os.environ), *check_flags_parse(os.environ)]


def check_open_files(limit: int) -> Finding:
    """Returns whether a process may open as many files as data and checkpoints of a large model need."""
    meaning = "large datasets and checkpoints of many arrays fail with 'too many open files'"
    fix = "ulimit -n 65536, or LimitNOFILE= of the service"
    is_well = limit < 0 or limit >= _FILES_WANTED
    return judged(is_well, "open files", f"a process may open {limit:,} files", fix, meaning)


def check_shared_memory(place: Path) -> list[Finding]:
    """Returns whether processes of one machine can share enough memory, which containers keep to 64 MB."""
    if not place.is_dir():
        return []
    size = shutil.disk_usage(place).total
    meaning = "collectives and data workers fail, or become slow, on machines with several accelerators"
    fix = "docker run --shm-size=8g, or an emptyDir of medium Memory at /dev/shm"
    message = f"{place} holds {size / 2**20:,.0f} MiB"
    return [judged(size >= _SHARED_BYTES_WANTED, "shared memory", message, fix, meaning)]


def check_variables(environment: Mapping[str, str]) -> list[Finding]:
    """Returns the variables that are set and make a run slow or another one."""
    odd = [
        Finding("warning", name, f"{name}={environment[name]}", f"unset {name}", meaning)
        for name, meaning in _ODD.items()
        if environment.get(name, "") not in _OFF
    ]
    return odd or [Finding("ok", "variables", "none is set that makes a run slow or another one")]


def check_flags_parse(environment: Mapping[str, str]) -> list[Finding]:
    """Returns whether the installed compiler knows the flags that it will get, by starting it once."""
    if not environment.get("XLA_FLAGS", "").strip():
        return []
    try:
        done = _started("import jax; jax.devices()", _START_SECONDS, {**environment, "JAX_PLATFORMS": "cpu"})
    except subprocess.TimeoutExpired:
        return [Finding("warning", "XLA_FLAGS", f"the compiler didn't start within {_START_SECONDS} s with them")]
    if done.returncode == 0:
        return [Finding("ok", "XLA_FLAGS", "the installed compiler knows every flag")]
    message = next((line for line in done.stderr.splitlines() if "lag" in line), done.stderr.strip()[-200:])
    message = message.partition("] ")[2] or message
    meaning = "every process ends as soon as it starts JAX"
    return [Finding("error", "XLA_FLAGS", message[:300], "remove that flag, or use the jaxlib that has it", meaning)]


def check_devices(seconds: int = _START_SECONDS) -> Finding:
    """Returns what JAX starts on this machine, in a process of its own, so that none is held."""
    try:
        done = _started(
            "import jax; d = jax.devices(); print(d[0].platform, len(d), d[0].device_kind, sep='|')", seconds
        )
    except subprocess.TimeoutExpired:
        meaning = "a device that hangs, or that another process holds"
        return Finding("error", "devices", f"JAX didn't start within {seconds} s", "look who uses it", meaning)
    if done.returncode:
        message = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return Finding("error", "devices", f"JAX doesn't start: {message[:300]}", "", "no run can begin here")
    platform, count, kind = done.stdout.strip().splitlines()[-1].split("|")
    return Finding("ok", "devices", f"JAX runs on {count} x {kind} ({platform})")


def _started(
    program: str, seconds: float, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-P", "-c", program]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=seconds, check=False)


def check_name(name: str) -> Finding:
    """Returns whether this host's own name has an address that others could use."""
    try:
        addresses = sorted({str(info[4][0]) for info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)})
    except OSError as error:
        meaning = "processes with this name as their coordinator can't find it"
        fix = "add it to /etc/hosts or to the name server, or give the coordinator's address as a number"
        return Finding("warning", "host name", f"{name} has no address: {error}", fix, meaning)
    meaning = "a coordinator that announces itself by this name is found by its own host alone"
    fix = "give the coordinator's address as a number where a run has several hosts"
    is_own = all(address.startswith("127.") or address == "::1" for address in addresses)
    message = f"{name} is {', '.join(addresses)}{': this host alone can reach that' if is_own else ''}"
    return judged(not is_own, "host name", message, fix, meaning)


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
