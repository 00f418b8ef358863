"""The requests of a measurement: prompts and lengths of several kinds, and when each is sent; all from one seed."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
from kanawa.errors import UsageError, did_you_mean

Kind = Literal["sharegpt", "random", "prefix_repetition", "custom"]
KINDS: tuple[Kind, ...] = ("sharegpt", "random", "prefix_repetition", "custom")
#: Ids that tokenizers reserve for begin, end and the like.
_SPECIAL = 3


@dataclasses.dataclass(frozen=True)
class BenchRequest:
    """One request: token ids or text, how many tokens it is known to have (0: not known), and new ones to make."""

    prompt: list[int] | str
    prompt_tokens: int
    max_tokens: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
    """Lengths of prompts and outputs.

    "sharegpt": both lognormal, like conversations of people with a model: medians `input_length` and `output_length`,
    deviations of the logarithm `input_sigma` and `output_sigma`, at most eight medians long. "random": uniform within
    `range_ratio` of the lengths. "prefix_repetition": as many prompts for each of `prefixes` beginnings of
    `prefix_length` tokens, each followed by `input_length` of its own. "custom": the lines of `file`, JSON with
    `prompt` (text or ids) and `max_tokens`.
    """

    kind: Kind = "sharegpt"
    count: int = 100
    input_length: int = 100
    output_length: int = 67
    input_sigma: float = 1.0
    output_sigma: float = 0.8
    range_ratio: float = 0.0
    prefixes: int = 10
    prefix_length: int = 256
    vocab_size: int = 256
    file: Path | None = None
    seed: int = 0

    def requests(self) -> list[BenchRequest]:
        """Returns the requests in order; raises UsageError naming a line or a size that can't be."""
        if self.kind == "custom":
            return self._of_file()
        self._check()
        rng = np.random.default_rng(self.seed)
        if self.kind == "sharegpt":
            inputs = _lognormal(rng, self.input_length, self.input_sigma, self.count)
            outputs = _lognormal(rng, self.output_length, self.output_sigma, self.count)
        else:
            spread = self.range_ratio if self.kind == "random" else 0.0
            inputs = _uniform(rng, self.input_length, spread, self.count)
            outputs = _uniform(rng, self.output_length, spread, self.count)
        beginnings = [self._ids(rng, self.prefix_length) for _ in range(self.prefixes)]
        requests = []
        for index, (length, new) in enumerate(zip(inputs, outputs, strict=True)):
            prompt = self._ids(rng, int(length))
            if self.kind == "prefix_repetition":
                prompt = beginnings[index % self.prefixes] + prompt
            requests.append(BenchRequest(prompt, len(prompt), int(new)))
        return requests

    def _check(self) -> None:
        sizes = ("count", "input_length", "output_length", "prefixes", "prefix_length")
        broken = [f"{name.replace('_', '-')} is {getattr(self, name)}" for name in sizes if getattr(self, name) < 1]
        if broken:
            message = f"a workload has at least one of everything: {', '.join(broken)}"
            raise UsageError(message)
        if self.vocab_size <= _SPECIAL:
            message = f"vocab-size is {self.vocab_size}; expected over {_SPECIAL}: lower ids may be special"
            raise UsageError(message)
        if not 0.0 <= self.range_ratio < 1.0:
            message = f"range-ratio is {self.range_ratio:g}; expected at least 0 and less than 1"
            raise UsageError(message)

    def _ids(self, rng: np.random.Generator, length: int) -> list[int]:
        ids: list[int] = rng.integers(_SPECIAL, self.vocab_size, length).tolist()
        return ids

    def _of_file(self) -> list[BenchRequest]:
        if self.file is None:
            message = "the dataset custom needs --dataset-path FILE, a JSON object a line with prompt and max_tokens"
            raise UsageError(message)
        requests: list[BenchRequest] = []
        with self.file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip() and len(requests) < self.count:
                    requests.append(self._of_line(line, f"{self.file}:{number}"))
        if not requests:
            message = f"{self.file} holds no requests; expected a JSON object a line with prompt and max_tokens"
            raise UsageError(message)
        return requests

    def _of_line(self, line: str, where: str) -> BenchRequest:
        try:
            record = json.loads(line)
        except ValueError as error:
            message = f"{where}: no JSON ({error}); expected an object with prompt and max_tokens"
            raise UsageError(message) from None
        prompt = record.get("prompt") if isinstance(record, dict) else None
        is_ids = isinstance(prompt, list) and all(type(token) is int for token in prompt)
        if not (prompt and (isinstance(prompt, str) or is_ids)):
            near = did_you_mean("prompt", record) if isinstance(record, dict) else ""
            message = f"{where}: expected prompt, a text or a list of token ids{near}"
            raise UsageError(message)
        most = record.get("max_tokens", self.output_length)
        if type(most) is not int or most < 1:
            message = f"{where}: max_tokens is {most!r}, expected a whole number of at least 1"
            raise UsageError(message)
        return BenchRequest(prompt, len(prompt) if is_ids else 0, most)


def arrivals(count: int, rate: float, burstiness: float, seed: int) -> list[float]:
    """Returns when each request is sent, in seconds from the first; `rate` a second, all at once where it is inf.

    Intervals are gamma distributed with shape `burstiness`: 1 is a Poisson process, less comes in bursts, inf is even.
    """
    if rate <= 0 or burstiness <= 0:
        message = f"request-rate ({rate:g}) and burstiness ({burstiness:g}) have to be more than 0; inf is allowed"
        raise UsageError(message)
    if math.isinf(rate):
        return [0.0] * count
    if math.isinf(burstiness):
        return [index / rate for index in range(count)]
    # Its own stream: another rate must not change the requests.
    rng = np.random.default_rng((seed, 1))
    gaps = rng.gamma(burstiness, 1.0 / (rate * burstiness), count - 1)
    return [0.0, *np.cumsum(gaps).tolist()]


def _lognormal(rng: np.random.Generator, median: int, sigma: float, count: int) -> Any:
    drawn = np.exp(rng.normal(math.log(median), sigma, count))
    return np.clip(np.rint(drawn), 1, 8 * median).astype(int)


def _uniform(rng: np.random.Generator, length: int, ratio: float, count: int) -> Any:
    low, high = math.floor(length * (1 - ratio)), math.ceil(length * (1 + ratio))
    return rng.integers(max(1, low), high + 1, count)
