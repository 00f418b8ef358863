"""`kanawa bench serve`: measures a server that speaks OpenAI's interface, with requests that don't wait for answers."""

import argparse
import asyncio
import datetime
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kanawa.cli.output import write, write_json
from kanawa.errors import UsageError, did_you_mean
from kanawa.local_path import local_path
from kanawa.plugins import Command

if TYPE_CHECKING:
    from kanawa_runtime.serve.bench import BenchRequest

_KINDS = ("sharegpt", "random", "prefix_repetition", "custom")
_GOALS = ("ttft", "tpot", "e2el")
_METRICS = ("ttft", "tpot", "itl", "e2el")
_ENDPOINTS = {"openai": "/v1/completions", "openai-chat": "/v1/chat/completions"}


def command() -> Command:
    """Returns the verb."""
    return Command(
        name="bench",
        help="measure a server: throughput and latencies under a load that doesn't wait",
        configure=configure,
        run=run,
        example=(
            "kanawa bench serve --base-url http://127.0.0.1:8000 --request-rate 4 --num-prompts 200\n"
            "kanawa bench serve --dataset-name prefix_repetition --max-concurrency 32\n"
            "kanawa bench serve --base-url http://127.0.0.1:8000 --goodput ttft:500 tpot:50 --result result.json"
        ),
    )


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments, named as those of `vllm bench serve`."""
    add = parser.add_argument
    add("what", choices=["serve"], help="what is measured: a server")
    add("--base-url", default="http://127.0.0.1:8000", metavar="URL", help="the server (default: %(default)s)")
    add("--backend", choices=list(_ENDPOINTS), default="openai", help="completions, or chat (needs text prompts)")
    add("--model", metavar="NAME", help="the model to ask for (default: the first that the server names)")
    add("--api-key", metavar="KEY", help="the client's key; or OPENAI_API_KEY")
    add("--dataset-name", choices=_KINDS, default="sharegpt", help="lengths and prompts (default: %(default)s)")
    add("--dataset-path", metavar="FILE", help="of custom: a JSON object a line, with prompt and max_tokens")
    add("--num-prompts", type=int, default=100, metavar="N", help="requests (default 100)")
    add("--input-len", type=int, default=100, metavar="N", help="tokens of a prompt; the median of sharegpt")
    add("--output-len", type=int, default=67, metavar="N", help="new tokens; the median of sharegpt")
    add("--range-ratio", type=float, default=0.0, metavar="R", help="of random: lengths vary by this share")
    add("--num-prefixes", type=int, default=10, metavar="N", help="of prefix_repetition: different beginnings")
    add("--prefix-len", type=int, default=256, metavar="N", help="of prefix_repetition: tokens of a beginning")
    add("--vocab-size", type=int, default=256, metavar="N", help="prompts are random ids below it (default 256)")
    add("--request-rate", type=float, default=float("inf"), metavar="R", help="a second; inf sends all at once")
    add("--burstiness", type=float, default=1.0, metavar="B", help="1: Poisson; less: bursts; inf: even")
    add("--max-concurrency", type=int, metavar="N", help="hold back requests beyond N unanswered ones")
    add("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy")
    add("--percentile-metrics", default="ttft,tpot,itl", metavar="A,B", help="of ttft, tpot, itl, e2el")
    add("--metric-percentiles", default="99", metavar="P,Q", help="percentiles to tell (default 99)")
    add("--goodput", nargs="+", metavar="METRIC:MS", help="count requests that keep ttft, tpot and e2el within limits")
    add("--num-warmups", type=int, default=0, metavar="N", help="requests sent before, and not counted")
    add("--seed", type=int, default=0, metavar="S", help="seed of prompts, lengths and arrivals")
    add("--result", metavar="FILE", help="write the result as JSON, with the keys of `vllm bench serve`")
    add("--save-detailed", action="store_true", help="keep what was seen of each request in the result")
    add("--label", metavar="TEXT", help="noted in the result")
    add("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Measures; returns 0 where every request was answered, else 1."""
    from kanawa_runtime.serve.bench import DETAILED

    out = None if args.result is None else local_path(args.result, "--result")
    record = asyncio.run(_measured(args))
    errors = sorted({error for error in record["errors"] if error})
    if not args.save_detailed:
        record = {key: value for key, value in record.items() if key not in DETAILED}
    if out is not None:
        out.write_text(json.dumps(record) + "\n", encoding="utf-8")
    if args.json:
        write_json(record)
    else:
        write(_shown(record, errors))
    return 1 if record["failed"] else 0


async def _measured(args: argparse.Namespace) -> dict[str, Any]:
    from kanawa_runtime.serve.bench import Endpoint, Workload, arrivals, fetch, send_all, summarize

    metrics, percentiles = _metrics(args.percentile_metrics), _percentiles(args.metric_percentiles)
    goal = _goal(args.goodput)
    if args.max_concurrency is not None and args.max_concurrency < 1:
        message = f"--max-concurrency is {args.max_concurrency}; expected at least 1"
        raise UsageError(message)
    asked = Workload(
        kind=args.dataset_name, count=args.num_prompts, input_length=args.input_len, output_length=args.output_len,
        range_ratio=args.range_ratio, prefixes=args.num_prefixes, prefix_length=args.prefix_len,
        vocab_size=args.vocab_size, seed=args.seed,
        file=None if args.dataset_path is None else Path(local_path(args.dataset_path, "--dataset-path")),
    ).requests()  # fmt: skip
    times = arrivals(len(asked), args.request_rate, args.burstiness, args.seed)
    key = args.api_key or os.environ.get("OPENAI_API_KEY")
    model = args.model or (await fetch(Endpoint.of(args.base_url, "/v1/models", key)))["data"][0]["id"]
    endpoint = Endpoint.of(args.base_url, _ENDPOINTS[args.backend], key)

    def body(one: "BenchRequest") -> dict[str, Any]:
        return _body(one, model, args)

    if args.num_warmups:
        warm = [asked[index % len(asked)] for index in range(args.num_warmups)]
        await send_all(endpoint, warm, [0.0] * len(warm), body=body)
    answers, seconds = await send_all(endpoint, asked, times, body=body, max_concurrency=args.max_concurrency)
    head = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": args.backend,
        "backend": args.backend,
        "label": args.label,
        "model_id": model,
        "tokenizer_id": model,
        "num_prompts": len(asked),
        "request_rate": args.request_rate if args.request_rate < float("inf") else "inf",
        "burstiness": args.burstiness,
        "max_concurrency": args.max_concurrency,
    }
    return head | summarize(answers, seconds, metrics=metrics, percentiles=percentiles, goal=goal)


def _body(one: "BenchRequest", model: str, args: argparse.Namespace) -> dict[str, Any]:
    body = {"model": model, "max_tokens": one.max_tokens, "temperature": args.temperature, "stream": True}
    # Lengths are what is asked for: a model that stops early would be measured by its mood.
    body |= {"stream_options": {"include_usage": True}, "ignore_eos": True, "seed": args.seed}
    if args.backend == "openai":
        return body | {"prompt": one.prompt}
    if not isinstance(one.prompt, str):
        message = "--backend openai-chat takes text: use --dataset-name custom, with texts in --dataset-path FILE"
        raise UsageError(message)
    return body | {"messages": [{"role": "user", "content": one.prompt}]}


def _metrics(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in _METRICS:
            message = f"--percentile-metrics: no metric {name!r}{did_you_mean(name, _METRICS)}; {', '.join(_METRICS)}"
            raise UsageError(message)
    return names


def _percentiles(text: str) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = [-1.0]
    if not all(0 <= value <= 100 for value in values):
        message = f"--metric-percentiles {text!r}: expected numbers from 0 to 100 separated by commas, such as 50,99"
        raise UsageError(message)
    return values


def _goal(texts: list[str] | None) -> dict[str, float] | None:
    limits: dict[str, float] = {}
    for text in texts or ():
        name, _, value = text.partition(":")
        if name not in _GOALS or not value.replace(".", "", 1).isdigit():
            message = f"--goodput {text!r}: expected METRIC:MILLISECONDS with a metric of {', '.join(_GOALS)}"
            raise UsageError(message)
        limits[name] = float(value)
    return limits or None


def _shown(record: dict[str, Any], errors: list[str]) -> str:
    lines = [
        f"{record['completed']} of {record['num_prompts']} requests in {record['duration']:.2f} s",
        f"{record['output_throughput']:.1f} output tokens/s, {record['total_token_throughput']:.1f} tokens/s in all",
    ]
    for name in _METRICS:
        if f"mean_{name}_ms" in record:
            rest = (key for key in record if key.endswith(f"_{name}_ms"))
            lines.append(f"{name}: " + ", ".join(f"{key.split('_')[0]} {record[key]:.2f}" for key in rest) + " ms")
    lines += [f"failed: {error}" for error in errors[:5]]
    return "\n".join(lines)
