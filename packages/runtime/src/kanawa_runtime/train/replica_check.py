"""Silent data corruption: now and then replicas are compared after a step, and a step that differs is taken again."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
from kanawa.errors import KanawaError

from kanawa_runtime.exit_codes import LOST
from kanawa_runtime.train.replicas import Layouts, all_digests, copied, differing, local_digests

#: `transient`: taken again, all agree; `persistent`: they differ again; `earlier`: they differed before the step.
Kind = Literal["transient", "persistent", "earlier"]


class ReplicasDifferError(KanawaError):
    """Devices that should hold the same numbers don't; the run can resume from a checkpoint."""

    exit_code = LOST


class ReplicaCheck:
    """Takes every `every_steps`th step under observation. `on_event` gets what was seen, `go_back` a step to trust.

    The state before such a step is retained while it runs: that is the memory it needs.
    """

    def __init__(
        self,
        program: Callable[..., Any],
        every_steps: int,
        on_event: Callable[[Mapping[str, Any]], None],
        go_back: Callable[[int], list[str]],
        trusted: int,
    ) -> None:
        self._program = program
        self._every_steps = every_steps
        self._on_event = on_event
        self._go_back = go_back
        self._trusted = trusted
        self._layouts: Layouts | None = None

    def is_due(self, step: int) -> bool:
        """Whether the update number `step` is one to observe."""
        return step % self._every_steps == 0

    def take(self, state: Any, batch: Any, step: int) -> Any:
        """Returns what the step gives for a state, which is donated; raises ReplicasDifferError."""
        kept = jax.tree.map(copied, state)
        after = self._program(state, batch)
        first = self._odd(after[0])
        if not first:
            self._trusted = step
            return after
        before = self._odd(kept)
        if before:
            self._report("earlier", before, step)
            aside = self._go_back(self._trusted)
            raise ReplicasDifferError(self._message("earlier", before, step, aside))
        again = self._program(kept, batch)
        second = self._odd(again[0])
        kind: Kind = "persistent" if second else "transient"
        self._report(kind, first, step)
        if second:
            # The state before the step was the same everywhere.
            self._trusted = step - 1
            raise ReplicasDifferError(self._message(kind, second, step, self._go_back(self._trusted)))
        self._trusted = step
        return again

    def _odd(self, state: Any) -> tuple[int, ...]:
        arrays = [leaf for leaf in jax.tree.leaves(state) if isinstance(leaf, jax.Array)]
        if self._layouts is None:
            self._layouts = Layouts.of(arrays)
        if not self._layouts.leaves:
            return ()
        own = local_digests(arrays, self._layouts)
        return differing(all_digests(own, len(self._layouts.leaves)), self._layouts)

    def _report(self, kind: Kind, odd: tuple[int, ...], step: int) -> None:
        self._on_event({"step": step, "verdict": kind, "devices": list(odd), "ranks": ranks_of(odd)})

    def _message(self, kind: Kind, odd: tuple[int, ...], step: int, aside: list[str]) -> str:
        ranks = ", ".join(map(str, ranks_of(odd)))
        when = {
            "earlier": f"some time after step {self._trusted}",
            "persistent": f"in step {step}, and again when that was taken a second time",
            "transient": f"in step {step}",
        }[kind]
        kept = f" Checkpoints after step {self._trusted} are set aside: {', '.join(aside)}." if aside else ""
        return (
            f"replicas differ: devices {list(odd)} of rank {ranks} computed other numbers than the rest, {when}.{kept} "
            "The same command resumes from the newest checkpoint that is left; check those hosts, or replace them"
        )


def ranks_of(devices: tuple[int, ...]) -> list[int]:
    """Returns the processes that devices belong to."""
    by_id = {device.id: device.process_index for device in jax.devices()}
    return sorted({by_id[device] for device in devices})
