"""The drill: read three sources to their end through many kills, and count what was skipped and repeated.

Nothing here knows a pipeline. A pipeline opens a session for some hosts from a state, takes steps, and says its state.
A kill throws away what was read after the last state. Between two attempts the number of hosts and the weights of the
sources may change; threads and read-ahead vary where a pipeline has them.
"""

import collections
import dataclasses
import random
from typing import Any, Protocol

import numpy as np

HOSTS = (1, 2, 3, 4, 6, 8)
#: Rows of a step over all hosts; every number of hosts divides it.
GLOBAL_BATCH = 24
SHARES = {"web": 0.5, "code": 0.3, "books": 0.2}


@dataclasses.dataclass(frozen=True)
class Data:
    """Documents by source; a document is an array of ids that occur nowhere else. Lengths are heavy-tailed."""

    sources: dict[str, list[np.ndarray]]

    @classmethod
    def of(cls, documents: int, row_length: int, seed: int = 0) -> "Data":
        """Returns about so many documents, some of them longer than a row."""
        draw = np.random.RandomState(seed)
        sources, first = {}, 1
        for name, share in SHARES.items():
            lengths = np.maximum(1, draw.lognormal(np.log(row_length / 3), 0.9, int(documents * share))).astype(int)
            starts = first + np.concatenate([[0], np.cumsum(lengths)])
            sources[name] = [np.arange(a, b) for a, b in zip(starts[:-1], starts[1:], strict=True)]
            first = int(starts[-1])
        return cls(sources)

    @property
    def count(self) -> int:
        """Ids in all."""
        return sum(len(document) for documents in self.sources.values() for document in documents)


class Session(Protocol):
    """An attempt of all hosts together."""

    def step(self) -> list[int] | None:
        """Returns the ids that all hosts read in one step; None where the data have ended."""

    def state(self) -> Any:
        """Returns what a checkpoint after the last step holds."""

    def close(self) -> None:
        """Ends the attempt."""


class Pipeline(Protocol):
    """What is drilled."""

    def open(self, hosts: int, weights: dict[str, float], state: Any, draw: random.Random) -> Session:
        """Returns an attempt that goes on from a state, or from the beginning with None."""

    # A pipeline that ends with its first exhausted source has `ends_early`: what counts as skipped is then an id that
    # comes before another of its source, in the order of an attempt that is never killed. `early_kills` is the share of
    # attempts that are killed before their first step, while a pipeline starts.


@dataclasses.dataclass(frozen=True)
class Result:
    """Of all ids, how many were never read and how many reads were repeats; how often the run was killed."""

    ids: int
    skipped: int
    repeated: int
    kills: int


def run(
    pipeline: Pipeline, data: Data, *, kills: int, change_hosts: bool, change_weights: bool, seed: int = 0
) -> Result:
    """Reads all the data in `kills + 1` attempts, the last of them to the end."""
    draw, seen, state = random.Random(seed), collections.Counter[int](), None  # noqa: S311 - a drill, not a secret
    hosts, weights = 4, dict(SHARES)
    killed, ended = 0, False
    while not ended:
        if killed and change_hosts:
            hosts = draw.choice(HOSTS)
        if killed and change_weights:
            cuts = sorted(draw.sample(range(1, 20), 2))
            weights = dict(zip(SHARES, (cuts[0] / 20, (cuts[1] - cuts[0]) / 20, (20 - cuts[1]) / 20), strict=True))
        session = pipeline.open(hosts, weights, state, draw)
        last = killed == kills
        # Drawn only where it matters: other pipelines keep their draws.
        share = getattr(pipeline, "early_kills", 0.0)
        early = not last and share > 0 and draw.random() < share
        for _ in range(10**9 if last else 0 if early else draw.randint(0, 2)):
            ids = session.step()
            if ids is None:
                ended = True
                break
            seen.update(ids)
            state = session.state()
        # Read, trained on and lost: no checkpoint knows of it.
        for _ in range(0 if last or ended or early else draw.randint(0, 2)):
            session.step()
        session.close()
        killed += not ended
    seen.pop(0, None)
    expected = _whole(pipeline, data, seen) if getattr(pipeline, "ends_early", False) else data.count
    return Result(expected, expected - len(seen), sum(seen.values()) - len(seen), killed)


def _whole(pipeline: Any, data: Data, seen: collections.Counter[int]) -> int:
    """Returns how many ids a run reads that reads every source, in its order, up to the last one that was read."""
    count = 0
    for name, documents in data.sources.items():
        ids = [int(i) for place in pipeline.order(name) for i in documents[place]]
        reached = [place for place, i in enumerate(ids) if i in seen]
        count += reached[-1] + 1 if reached else 0
    return count
