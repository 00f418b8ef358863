"""From answers to the JSON that `vllm bench serve` writes: the same keys, with the same meanings and units."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from kanawa_runtime.serve.bench.client import RequestResult

#: Keys of every request or token that are written only where details are wanted; `vllm bench serve` drops the same.
DETAILED = ("input_lens", "output_lens", "start_times", "ttfts", "itls", "generated_texts", "errors")
METRICS = ("ttft", "tpot", "itl", "e2el")


@dataclasses.dataclass(frozen=True)
class Goal:
    """What a request has to meet to count as good: milliseconds by metric, of ttft, tpot and e2el."""

    milliseconds: dict[str, float]

    def is_met(self, metrics: dict[str, float]) -> bool:
        """Returns whether all limits hold; metrics in seconds."""
        return all(metrics[name] * 1e3 <= limit for name, limit in self.milliseconds.items())


def summarize(
    answers: Sequence[RequestResult],
    seconds: float,
    *,
    metrics: Sequence[str] = ("ttft", "tpot", "itl"),
    percentiles: Sequence[float] = (99.0,),
    goal: Goal | None = None,
) -> dict[str, Any]:
    """Returns the result of a run of `seconds`.

    ttft is from sending to the first piece, itl the gaps between pieces, tpot a request's time after the first piece by
    its other tokens, e2el all of it; in milliseconds as mean, median, std and percentiles.
    """
    good = [a for a in answers if not a.error and a.arrivals]
    values: dict[str, list[float]] = {name: [] for name in METRICS}
    met = 0
    for a in good:
        ttft, e2el = a.arrivals[0] - a.sent, a.arrivals[-1] - a.sent
        tpot = (a.arrivals[-1] - a.arrivals[0]) / (a.output_tokens - 1) if a.output_tokens > 1 else 0.0
        values["ttft"].append(ttft)
        values["e2el"].append(e2el)
        values["itl"] += np.diff(a.arrivals).tolist()
        if a.output_tokens > 1:
            values["tpot"].append(tpot)
        met += goal is not None and goal.is_met({"ttft": ttft, "tpot": tpot, "e2el": e2el})
    prompts, made = sum(a.prompt_tokens for a in good), sum(a.output_tokens for a in good)
    most_tokens, most_requests = _busiest(good)
    result: dict[str, Any] = {
        "duration": seconds,
        "completed": len(good),
        "failed": len(answers) - len(good),
        "total_input_tokens": prompts,
        "total_output_tokens": made,
        "request_throughput": len(good) / seconds,
        "request_goodput": None if goal is None else met / seconds,
        "output_throughput": made / seconds,
        "total_token_throughput": (prompts + made) / seconds,
        "input_lens": [a.prompt_tokens for a in answers],
        "output_lens": [a.output_tokens for a in answers],
        "ttfts": [a.arrivals[0] - a.sent if a.arrivals else 0.0 for a in answers],
        "itls": [np.diff(a.arrivals).tolist() for a in answers],
        "latencies": [(a.arrivals[-1] if a.arrivals else a.ended) - a.sent for a in answers],
        "start_times": [a.sent for a in answers],
        "queue_times": [a.queued for a in answers],
        "generated_texts": [a.text for a in answers],
        "errors": [a.error for a in answers],
        "max_output_tokens_per_s": most_tokens,
        "max_concurrent_requests": most_requests,
        "rtfx": 0.0,
    }
    for name in metrics:
        result |= _statistics(name, values[name], percentiles)
    return result


def _statistics(name: str, values: Sequence[float], percentiles: Sequence[float]) -> dict[str, float]:
    in_ms = np.asarray(values or [0.0]) * 1e3
    values_ms = {f"mean_{name}_ms": in_ms.mean(), f"median_{name}_ms": np.median(in_ms), f"std_{name}_ms": in_ms.std()}
    values_ms |= {f"p{p:g}_{name}_ms": np.percentile(in_ms, p) for p in percentiles}
    return {key: float(value) for key, value in values_ms.items()}


def _busiest(good: Sequence[RequestResult]) -> tuple[float, int]:
    """Returns the most tokens that came, and the most running requests, in one second of the run."""
    if not good:
        return 0.0, 0
    start = min(a.sent for a in good)
    tokens: np.ndarray = np.zeros(int(max(a.ended for a in good) - start) + 1)
    requests = np.zeros_like(tokens)
    for a in good:
        each = a.output_tokens / len(a.arrivals)
        for at in a.arrivals:
            tokens[int(at - start)] += each
        requests[int(a.sent - start) : int(a.ended - start) + 1] += 1
    return float(tokens.max()), int(requests.max())
