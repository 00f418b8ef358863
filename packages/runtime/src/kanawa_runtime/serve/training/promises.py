"""Answers that clients ask for later: each request gets an id at once, and its result when it is there."""

import asyncio
import collections
import dataclasses
import logging
from collections.abc import Awaitable
from typing import Any

from kanawa.errors import KanawaError, UsageError

logger = logging.getLogger(__name__)

#: Results that nobody has asked for yet, or may ask for again, at most.
_MOST_KEPT = 8192


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a request came to: an object as JSON, or bytes of the protocol's messages."""

    content: Any


class Promises:
    """Requests by id; used in the loop alone."""

    def __init__(self) -> None:
        self._tasks: collections.OrderedDict[str, tuple[str, asyncio.Task[Answer]]] = collections.OrderedDict()

    def has(self, request_id: str) -> bool:
        """Returns whether there is a request of that id: a client that got no answer sends it again."""
        return request_id in self._tasks

    def add(self, request_id: str, owner: str, work: Awaitable[Any]) -> None:
        """Begins a request; `work` returns what is answered."""
        task = asyncio.ensure_future(_answered(work))
        self._tasks[request_id] = owner, task
        if len(self._tasks) > _MOST_KEPT:
            old = next((name for name, (_, each) in self._tasks.items() if each.done()), None)
            if old is not None:
                del self._tasks[old]

    async def wait(self, request_id: str, owner: str, seconds: float) -> Answer | None:
        """Returns the answer, None where it takes longer; raises KeyError for an id that isn't this client's."""
        whose, task = self._tasks[request_id]
        if whose != owner:
            raise KeyError(request_id)
        done, _ = await asyncio.wait((task,), timeout=seconds)
        return task.result() if done else None

    def cancel(self, request_id: str, owner: str) -> None:
        """Ends a request that nobody waits for any more; an unknown id is ignored."""
        if request_id in self._tasks and self._tasks[request_id][0] == owner:
            self._tasks[request_id][1].cancel()

    def close(self) -> None:
        """Ends all of them."""
        for _, task in self._tasks.values():
            task.cancel()


async def _answered(work: Awaitable[Any]) -> Answer:
    """Returns what work returns, or its error as the protocol has it: the user's fault, or the server's."""
    try:
        return Answer(await work)
    except asyncio.CancelledError:
        return Answer({"error": "the request was cancelled", "category": "user"})
    except KanawaError as error:
        category = "user" if isinstance(error, UsageError) else "server"
        return Answer({"error": str(error), "category": category})
    except Exception as error:
        logger.exception("a request of the training service failed")
        return Answer({"error": f"{type(error).__name__} at the server; its log says more", "category": "server"})
