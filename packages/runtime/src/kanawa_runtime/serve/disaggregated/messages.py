"""Requests and outputs as JSON, for another engine."""

import dataclasses
import time
from typing import Any

from kanawa_runtime.serve.disaggregated.wire import WireError
from kanawa_runtime.serve.engine.request import Output, Request, SamplingParams, TokenLogprobs

_OUTPUT_FIELDS = ("finish_reason", "stop_token_id", "cached_tokens", "error")


def request_message(request: Request, seed: int) -> dict[str, Any]:
    """Returns a request for one new token with its seed, from which both engines draw."""
    sampling = request.sampling
    fields = {f.name: getattr(sampling, f.name) for f in dataclasses.fields(sampling) if f.name != "grammar"}
    fields |= {"seed": seed, "max_tokens": 1, "min_tokens": min(1, sampling.min_tokens)}
    fields["logit_bias"] = [[token, bias] for token, bias in sampling.logit_bias.items()]
    names = ("id", "prompt_ids", "adapter", "cache_salt", "priority")
    left = None if request.deadline is None else request.deadline - time.monotonic()
    return {name: getattr(request, name) for name in names} | {"sampling": fields, "seconds": left}


def request_of(message: dict[str, Any]) -> Request:
    """Returns the request that `request_message` wrote; raises WireError for anything else."""
    try:
        fields = dict(message["sampling"])
        fields["logit_bias"] = {int(token): float(bias) for token, bias in fields["logit_bias"]}
        for name in ("stop_token_ids", "allowed_token_ids"):
            fields[name] = None if fields[name] is None else tuple(int(i) for i in fields[name])
        fields["bad_words"] = tuple(tuple(int(i) for i in word) for word in fields["bad_words"])
        seconds = message["seconds"]
        return Request(
            id=str(message["id"]),
            prompt_ids=tuple(int(i) for i in message["prompt_ids"]),
            sampling=SamplingParams(**fields),
            adapter=None if message["adapter"] is None else str(message["adapter"]),
            cache_salt=str(message["cache_salt"]),
            priority=int(message["priority"]),
            deadline=None if seconds is None else time.monotonic() + float(seconds),
        )
    except (KeyError, TypeError, ValueError) as error:
        text = f"a request came that this version can't read ({type(error).__name__}: {error})"
        raise WireError(text) from error


def output_message(output: Output) -> dict[str, Any]:
    """Returns an output's fields."""
    fields = {name: getattr(output, name) for name in _OUTPUT_FIELDS} | {"token_ids": output.token_ids}
    logprobs = {"logprobs": output.logprobs, "prompt_logprobs": output.prompt_logprobs}
    return fields | {
        name: each and [one and [one.logprob, one.rank, one.top] for one in each] for name, each in logprobs.items()
    }


def output_of(request_id: str, message: dict[str, Any]) -> Output:
    """Returns the output that `output_message` wrote; raises WireError for anything else."""
    try:
        fields = {name: message[name] for name in _OUTPUT_FIELDS}
        return Output(
            request_id=request_id,
            token_ids=tuple(int(i) for i in message["token_ids"]),
            logprobs=_logprobs(message["logprobs"]),
            prompt_logprobs=_logprobs(message["prompt_logprobs"]),
            **fields,
        )
    except (KeyError, TypeError, ValueError) as error:
        text = f"an output came that this version can't read ({type(error).__name__}: {error})"
        raise WireError(text) from error


def _logprobs(listed: Any) -> Any:
    if listed is None:
        return None
    return tuple(
        one and TokenLogprobs(logprob=float(one[0]), rank=int(one[1]), top=tuple((int(i), float(p)) for i, p in one[2]))
        for one in listed
    )
