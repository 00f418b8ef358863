"""Prometheus metrics under vLLM's names, so that its dashboards and autoscalers read them unchanged."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kanawa_runtime.serve.engine.request import Engine
    from kanawa_runtime.serve.http.choice import Choice

_FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640)
_BETWEEN = (0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_WHOLE = (0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920)
_COUNTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000)
_FEW = (1, 2, 5, 10, 20)
_HISTOGRAMS = {
    "time_to_first_token_seconds": ("From a request to its first token", _FIRST),
    "inter_token_latency_seconds": ("From a token to the next", _BETWEEN),
    "request_time_per_output_token_seconds": ("Mean time a token after the first", _BETWEEN),
    "e2e_request_latency_seconds": ("From a request to its last token", _WHOLE),
    "request_queue_time_seconds": ("In the queue", _WHOLE),
    "request_inference_time_seconds": ("From leaving the queue to the last token", _WHOLE),
    "request_prefill_time_seconds": ("From leaving the queue to the first token", _WHOLE),
    "request_decode_time_seconds": ("From the first to the last token", _WHOLE),
    "request_prompt_tokens": ("Tokens of a prompt", _COUNTS),
    "request_generation_tokens": ("Tokens of an answer", _COUNTS),
    "request_params_max_tokens": ("Tokens that a request asks for at most", _COUNTS),
    "request_params_n": ("Choices that a request asks for", _FEW),
}
#: Of the engine's numbers, those that may fall again.
_GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_programs")
_COUNTED_HERE = ("prompt_tokens", "generation_tokens", "request_success")


class Metrics:
    """Counts a server's requests and responses for one model; all methods are called in the loop."""

    def __init__(self, model_name: str, engine: "Engine") -> None:
        from prometheus_client import CollectorRegistry, Counter, Histogram

        self._registry = CollectorRegistry()
        labels, values = ["model_name"], {"model_name": model_name}
        made = {
            name: Histogram(f"vllm:{name}", about, labels, buckets=buckets, registry=self._registry)
            for name, (about, buckets) in _HISTOGRAMS.items()
        }
        self._histograms = {name: histogram.labels(**values) for name, histogram in made.items()}
        count = {
            name: Counter(f"vllm:{name}", about, labels, registry=self._registry).labels(**values)
            for name, about in (("prompt_tokens", "Tokens of prompts"), ("generation_tokens", "Tokens of answers"))
        }
        self._prompt_tokens, self._generation_tokens = count["prompt_tokens"], count["generation_tokens"]
        reasons = ["model_name", "finished_reason"]
        finished = Counter("vllm:request_success", "Answers that ended", reasons, registry=self._registry)
        self._finished = {r: finished.labels(model_name, r) for r in ("stop", "length", "abort", "error")}
        self._responses = Counter(
            "kanawa:http_responses", "HTTP responses", ["path", "status"], registry=self._registry
        )
        self._registry.register(_EngineStats(engine, model_name))

    def count_prompt(self, prompt_tokens: int, n: int, max_tokens: int) -> None:
        """Counts a prompt with its choices."""
        self._prompt_tokens.inc(prompt_tokens)
        observe = self._histograms
        observe["request_prompt_tokens"].observe(prompt_tokens)
        observe["request_params_n"].observe(n)
        observe["request_params_max_tokens"].observe(max_tokens)

    def count_tokens(self, choice: "Choice", tokens: int, at: float) -> None:
        """Counts the tokens of one output; the first of them waited for all."""
        if not tokens:
            return
        self._generation_tokens.inc(tokens)
        if not choice.first:
            choice.first = at
            self._histograms["time_to_first_token_seconds"].observe(at - choice.submitted)
        else:
            self._histograms["inter_token_latency_seconds"].observe(at - choice.last)
        choice.last = at

    def count_finished(self, choice: "Choice") -> None:
        """Counts an answer that has ended."""
        self._finished[choice.finish_reason or "error"].inc()
        if not choice.first:
            return
        observe = self._histograms
        scheduled = min(max(choice.scheduled or choice.submitted, choice.submitted), choice.first)
        observe["request_generation_tokens"].observe(choice.num_tokens)
        observe["e2e_request_latency_seconds"].observe(choice.last - choice.submitted)
        observe["request_queue_time_seconds"].observe(scheduled - choice.submitted)
        observe["request_prefill_time_seconds"].observe(choice.first - scheduled)
        observe["request_inference_time_seconds"].observe(choice.last - scheduled)
        observe["request_decode_time_seconds"].observe(choice.last - choice.first)
        if choice.num_tokens > 1:
            each = (choice.last - choice.first) / (choice.num_tokens - 1)
            observe["request_time_per_output_token_seconds"].observe(each)

    def count_response(self, path: str, status: int) -> None:
        """Counts a response; `path` is a route's, so that paths made up by clients add no series."""
        self._responses.labels(path, str(status)).inc()

    def text(self) -> bytes:
        """Returns everything in Prometheus' text format."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry)


class _EngineStats:
    """The engine's own counters, read at each scrape."""

    def __init__(self, engine: "Engine", model_name: str) -> None:
        self._engine = engine
        self._model_name = model_name

    def describe(self) -> list[Any]:
        """Returns nothing: the names are known only from the engine's stats."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yields a family a number: gauges, and counters for all others."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        stats: Mapping[str, float] = self._engine.stats()
        for name, number in sorted(stats.items()):
            # Prometheus refuses duplicates of the server's own counters.
            if name.startswith(_COUNTED_HERE):
                continue
            kind = GaugeMetricFamily if name in _GAUGES else CounterMetricFamily
            family = kind(f"vllm:{name}", "Of the engine", labels=["model_name"])
            family.add_metric([self._model_name], number)
            yield family
