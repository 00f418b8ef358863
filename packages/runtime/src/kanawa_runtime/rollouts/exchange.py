"""What the processes of a gang say to each other about rollouts: small texts, by the coordination service.

Collectives on devices must be called by all processes in one order; rollouts are drawn and rated on threads beside the
training step, so they use none.
"""

import json
from typing import Any

import jax

from kanawa_runtime.checkpoint.agreement import forget, gathered

#: A reward may take minutes; a process that died is noticed by the coordination service long before.
_SECONDS = 6 * 3600.0
#: Texts of a coordination service are small; longer ones are sent in parts.
_PART = 2**20


class Exchange:
    """A sequence of exchanges under one name; all processes take part in each, in order."""

    def __init__(self, name: str) -> None:
        self._name, self._count = f"kanawa/rollouts/{name}", 0

    @property
    def is_alone(self) -> bool:
        """Whether there is one process."""
        return bool(jax.process_count() == 1)

    def all(self, value: Any) -> list[Any]:
        """Returns what each process passes, by process; values are JSON."""
        if self.is_alone:
            return [value]
        text = json.dumps(value)
        counts = [int(count) for count in self._gathered(str(-(-len(text) // _PART)))]
        parts = [self._gathered(text[i * _PART : (i + 1) * _PART]) for i in range(max(counts))]
        return [json.loads("".join(part[index] for part in parts)) for index in range(len(counts))]

    def _gathered(self, text: str) -> list[str]:
        key = f"{self._name}/{self._count}"
        # A service may take an empty text for one that is missing.
        found = [part[1:] for part in gathered(key, f"={text}", _SECONDS)]
        if self._count and jax.process_index() == 0:
            # Whoever has passed on the next text has read this one.
            forget(f"{self._name}/{self._count - 1}")
        self._count += 1
        return found
