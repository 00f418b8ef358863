"""The models that clients train: their adapters, gradients and optimizer's states, and the order of their requests."""

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from kanawa.errors import UsageError

from kanawa_runtime.serve.training.adapters import AdamStep, AdaptedModel, AdapterKind, BaseModel, Flat
from kanawa_runtime.serve.training.saved import SavedAdapter
from kanawa_runtime.serve.training.wire import ForwardBackward, forward_backward_bytes


class TrainingError(UsageError):
    """A client asked for what can't be; the message is for it."""


@dataclasses.dataclass
class Tenant:
    """One adapter in training; its methods are called on one thread, in the order of its client's requests."""

    model_id: str
    owner: str
    base_name: str
    adapted: AdaptedModel
    adapter: Flat
    opt: Flat | None = None
    gradients: Flat | None = None
    step: int = 0

    def forward_backward(self, request: ForwardBackward) -> bytes:
        """Returns the answer's bytes; gradients are summed until the next update."""
        result = self.adapted.run(
            self.adapter, request.rows, request.loss, request.options, forward_only=request.forward_only
        )
        if result.gradients is not None:
            before, new = self.gradients, result.gradients
            self.gradients = new if before is None else jax.tree.map(jnp.add, before, new)
        total = float(np.sum([np.sum(losses, dtype=np.float64) for losses in result.losses]))
        outputs = {"logprobs": result.logprobs, "elementwise_loss": result.losses}
        return forward_backward_bytes(outputs, {"loss:sum": total})

    def optim_step(self, numbers: AdamStep) -> dict[str, Any]:
        """Updates the adapter; raises TrainingError where nothing was differentiated, or not to finite numbers."""
        if self.gradients is None:
            message = "optim_step: there are no gradients; call forward_backward before it"
            raise TrainingError(message)
        adapter, opt, norm = self.adapted.update(self.adapter, self.opt, self.gradients, numbers)
        self.gradients = None
        if not np.isfinite(norm):
            message = f"optim_step: the gradients' norm is {norm}, so that nothing was changed; look at the rows' loss"
            raise TrainingError(message)
        self.adapter, self.opt, self.step = adapter, opt, self.step + 1
        return {"metrics": {"gradient_norm:mean": norm, "step:max": float(self.step)}}

    def about(self) -> dict[str, Any]:
        """Returns the facts that make the adapter again."""
        kind = dataclasses.asdict(self.adapted.kind)
        alpha = self.adapted.base.config.alpha
        return {"owner": self.owner, "base_model": self.base_name, "kind": kind, "alpha": alpha, "step": self.step}

    def arrays(self, *, optimizer: bool) -> dict[str, np.ndarray]:
        """Returns what is saved, as host arrays."""
        held = {f"params/{path}": leaf for path, leaf in self.adapter.items()}
        if optimizer and self.opt is not None:
            held |= {f"opt/{path}": leaf for path, leaf in self.opt.items()}
        return {name: np.asarray(leaf) for name, leaf in jax.device_get(held).items()}

    def load(self, saved: SavedAdapter, *, optimizer: bool) -> None:
        """Takes a saved adapter; raises TrainingError for one of another kind."""
        shapes = self.adapted.shapes()
        params = saved.of("params")
        if {path: x.shape for path, x in params.items()} != dict(shapes):
            message = f"the checkpoint's adapter is of another kind than this model's: {saved.about['kind']}"
            raise TrainingError(message)
        self.adapter = {path: jnp.asarray(x) for path, x in params.items()}
        opt = {path: jnp.asarray(x) for path, x in saved.of("opt").items()} if optimizer else {}
        self.opt, self.gradients, self.step = opt or None, None, int(saved.about["step"]) if optimizer else 0


def tenant_of(saved: SavedAdapter, base: BaseModel, model_id: str, owner: str, *, optimizer: bool) -> Tenant:
    """Returns a model that goes on from a checkpoint; raises TrainingError for one of another base or scale."""
    if saved.about["alpha"] != base.config.alpha:
        message = f"the checkpoint's alpha is {saved.about['alpha']}, this server's {base.config.alpha:g}"
        raise TrainingError(message)
    adapted = base.adapted(AdapterKind(**saved.about["kind"]))
    tenant = Tenant(model_id, owner, str(saved.about["base_model"]), adapted, {})
    tenant.load(saved, optimizer=optimizer)
    return tenant


class InOrder:
    """Runs a model's requests by their numbers, whatever order they arrive in; used in the loop.

    A request that doesn't come, while others wait for it, is given up after `gap_seconds`, and those that wait fail: an
    update without one of its gradients would be another update. At most `most` numbers are taken ahead.
    """

    def __init__(self, first: int, most: int, gap_seconds: float) -> None:
        self._next, self._most, self._gap_seconds = first, most, gap_seconds
        self._turns: dict[int, asyncio.Future[None]] = {}
        self._done: set[int] = set()
        #: Numbers of requests that wait or run.
        self._here: set[int] = set()
        self._clock: asyncio.TimerHandle | None = None
        self.used_at = time.monotonic()

    @property
    def next(self) -> int:
        """The lowest number that isn't done."""
        return self._next

    def is_done(self, number: int) -> bool:
        """Returns whether a request of this number has run, was refused or was given up."""
        return number < self._next or number in self._done

    def has_room(self, number: int) -> bool:
        """Returns whether a number is near enough to wait for its turn; the next one always is."""
        return number < self._next + self._most

    async def run(self, number: int, work: Callable[[], Awaitable[Any]]) -> Any:
        """Returns what `work` returns, begun once all requests before it have ended."""
        self._here.add(number)
        self.used_at = time.monotonic()
        self._watch()
        try:
            if number > self._next:
                turn = self._turns.setdefault(number, asyncio.get_running_loop().create_future())
                await turn
            return await work()
        finally:
            self._here.discard(number)
            self.used_at = time.monotonic()
            self.skip(number)

    def close(self) -> None:
        """Ends those that wait for their turn."""
        self._stop_clock()
        for turn in list(self._turns.values()):
            turn.cancel()

    def skip(self, number: int) -> None:
        """Counts a request as done, such as one that was refused: those after it don't wait for it."""
        if not self.is_done(number) and number not in self._here and self.has_room(number):
            self._done.add(number)
        while self._next in self._done:
            self._done.discard(self._next)
            self._next += 1
            turn = self._turns.pop(self._next, None)
            if turn is not None and not turn.done():
                turn.set_result(None)
        self._watch()

    def _watch(self) -> None:
        """Starts the clock where the next request isn't here and others are; stops it where it is."""
        if not self._here or self._next in self._here:
            self._stop_clock()
        elif self._clock is None:
            self._clock = asyncio.get_running_loop().call_later(self._gap_seconds, self._give_up)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _give_up(self) -> None:
        self._clock = None
        missing, last = self._next, max(self._here)
        self._done |= {number for number in range(missing, last) if number not in self._here}
        for number in sorted(self._here):
            if self._turns[number].done():
                continue
            message = (
                f"request {missing} of this model didn't come within {self._gap_seconds:g} s (training.gap_seconds), "
                f"and request {number} had to wait for it: nothing was done. Perhaps it was refused before its number "
                "was read, as a body that is too long is; send the requests from there on again, under new numbers"
            )
            self._turns[number].set_exception(TrainingError(message))
