"""What clients have in common, in shares: no client alone takes all of it, and each waits for its own work."""

import asyncio
import collections
import concurrent.futures
import contextlib
import functools
import ipaddress
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

Result = TypeVar("Result")
#: A client may hold as many times of what is free: of an idle server's room four fifths, beside another such one 4/9.
_TIMES_FREE = 4


def network_of(address: str) -> str:
    """Returns the client behind an address: of IPv6 its /64, of which anyone has as many addresses as he likes."""
    try:
        known = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:  # a name, a socket's path, or nothing
        return address
    if isinstance(known, ipaddress.IPv4Address):
        return str(known)
    return str(known.ipv4_mapped or ipaddress.ip_network((known, 64), strict=False))


class Shares:
    """Places that clients take, such as those of requests; the fewer are free, the fewer a client may hold.

    Whatever one client does, a fifth of the places is left to others (dynamic thresholds, Choudhury and Hahne 1998).
    """

    def __init__(self, places: int) -> None:
        self.places = places
        self._held: collections.Counter[str] = collections.Counter()
        self._total = 0

    @property
    def most_at_once(self) -> int:
        """How many one client gets while nobody else has any."""
        return max(n for n in range(1, self.places + 1) if n == 1 or n - 1 < _TIMES_FREE * (self.places - n + 1))

    @property
    def free(self) -> int:
        """Places that nobody has."""
        return self.places - self._total

    def held(self, client: str) -> int:
        """Returns how many a client has."""
        return self._held[client]

    def has_room(self, client: str, count: int = 1) -> bool:
        """Returns whether a client may take so many places."""
        before = self._held[client] + count - 1
        return before < _TIMES_FREE * (self.free - count + 1)

    def take(self, client: str, count: int = 1) -> None:
        """Counts places as taken."""
        self._held[client] += count
        self._total += count

    def give_back(self, client: str, count: int = 1) -> None:
        """Counts places as free."""
        self._total -= count
        self._held[client] -= count
        if self._held[client] <= 0:
            del self._held[client]

    @contextlib.contextmanager
    def taken(self, client: str) -> Iterator[None]:
        """Takes a place while the block lasts."""
        self.take(client)
        try:
            yield
        finally:
            self.give_back(client)


class FairPool:
    """Threads that clients take in turns: the work of one delays its own, and that of others by a piece at most.

    A thread rests `rest` times as long as a piece of work took: Python runs one thread at a time, and some work, such
    as reading JSON, holds all others up.
    """

    def __init__(self, threads: int, name: str, *, rest: float = 0.0) -> None:
        self._rest = rest
        self._pool = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._free = threads
        #: How many threads a client may have at once: one is left to others, however long a piece of work takes.
        self._most = max(1, threads - 1)
        self._running: collections.Counter[str] = collections.Counter()
        self._waiting: dict[str, collections.deque[tuple[asyncio.Future[Any], Callable[[], Any]]]] = {}

    async def run(self, client: str, work: Callable[[], Result]) -> Result:
        """Returns what `work` returns in a thread; called in the loop."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, collections.deque()).append((future, work))
        self._start()
        return await future

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> None:
        while self._free:
            client = next((c for c in self._waiting if self._running[c] < self._most), None)
            if client is None:
                return
            waiting = self._waiting[client]
            future, work = waiting.popleft()
            del self._waiting[client]
            if waiting:
                self._waiting[client] = waiting  # behind all others
            if not future.done():
                self._free -= 1
                self._running[client] += 1
                loop = asyncio.get_running_loop()
                task = loop.run_in_executor(self._pool, work)
                task.add_done_callback(functools.partial(self._pass_on, client, loop.time(), future))

    def _pass_on(self, client: str, began: float, future: "asyncio.Future[Any]", task: "asyncio.Future[Any]") -> None:
        error = None if task.cancelled() else task.exception()
        # The client may have left meanwhile.
        if not future.done():
            if task.cancelled():
                future.cancel()
            elif error is not None:
                future.set_exception(error)
            else:
                future.set_result(task.result())
        loop = asyncio.get_running_loop()
        rest = self._rest * (loop.time() - began)
        if rest:
            loop.call_later(rest, self._leave, client)
        else:
            self._leave(client)

    def _leave(self, client: str) -> None:
        self._free += 1
        self._running[client] -= 1
        if not self._running[client]:
            del self._running[client]
        self._start()
