"""A request for text as the engine gets it: prompts, choices of each, and what the response says of all of them."""

import dataclasses
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from kanawa_runtime.serve.engine.request import Request, SamplingParams
from kanawa_runtime.serve.http.answers import Answer, Answers
from kanawa_runtime.serve.http.errors import invalid
from kanawa_runtime.serve.http.fields import Field, Flag, Shaped
from kanawa_runtime.serve.http.growing_text import GrowingText
from kanawa_runtime.serve.http.logprobs import LogprobWriter
from kanawa_runtime.serve.http.sampling import choice_of, stop_strings
from kanawa_runtime.serve.http.service import Service

STREAM_FIELDS = {
    "stream": Field(Flag(), False, help="answer in server-sent events"),
    "stream_options": Field(
        Shaped(
            {"include_usage": Field(Flag(), False), "continuous_usage_stats": Field(Flag(), False)},
            ignored=("include_obfuscation",),
        )
    ),
}

#: Tokens, each log-probability told beside one counted as another, that take some milliseconds to write.
_LONG_ANSWER_TOKENS = 2000


@dataclasses.dataclass
class Job:
    """Prompts and the choices of each, in the order of the response's `index`."""

    id: str
    model: str
    prompts: Sequence[Sequence[int]]
    answers: Sequence[Answer]
    writer: LogprobWriter
    created: int = dataclasses.field(default_factory=lambda: int(time.time()))

    def head(self, kind: str) -> dict[str, Any]:
        """Returns what every response and every event of it begins with."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def usage(self, given: int | None = None) -> dict[str, Any]:
        """Returns the tokens of all prompts and choices so far; `given` where a response shows fewer than drawn."""
        prompt = sum(len(ids) for ids in self.prompts)
        completion = sum(answer.num_tokens for answer in self.answers) if given is None else given
        cached = {answer.prompt: answer.cached_tokens for answer in reversed(self.answers)}
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(cached.values())},
        }

    def is_long(self, body: Mapping[str, Any]) -> bool:
        """Returns whether the answer tells so much of so many tokens that writing it would hold the loop up."""
        scored = int(body.get("prompt_logprobs") or 0) + int(body.get("top_logprobs") or 0) + int(body["logprobs"] or 0)
        tokens = sum(len(ids) for ids in self.prompts) + sum(answer.num_tokens for answer in self.answers)
        return tokens * (1 + scored) > _LONG_ANSWER_TOKENS

    def prompt_of(self, answer: Answer) -> Sequence[int]:
        """Returns the ids that a choice goes on from."""
        return self.prompts[answer.prompt]


def make_job(
    service: Service,
    body: Mapping[str, Any],
    prefix: str,
    prompts: Sequence[Sequence[int]],
    samplings: Sequence[SamplingParams],
) -> Job:
    """Returns the job of a request: `samplings` are those of the first choice of each prompt."""
    adapter, model, now = service.adapter(body["model"]), service.model, time.monotonic()
    limits, count = model.engine.limits, len(prompts) * body["n"]
    if count > limits.max_sequences + limits.max_queued:
        # A full queue it would be told of for ever.
        most = limits.max_sequences + limits.max_queued
        raise invalid(at="n", why=f"the request asks for {count} answers at once, and the server holds {most} in all")
    name, stops = f"{prefix}-{uuid.uuid4().hex}", stop_strings(body)
    special = {} if body["skip_special_tokens"] else model.special
    answers = []
    for place, (ids, sampling) in enumerate(zip(prompts, samplings, strict=True)):
        for choice in range(body["n"]):
            index = place * body["n"] + choice
            text = GrowingText(
                model.tokenizer,
                ids,
                stops,
                include_stop=body["include_stop_str_in_output"],
                min_tokens=sampling.min_tokens,
                special=special,
            )
            request = Request(
                id=f"{name}-{index}",
                prompt_ids=tuple(ids),
                sampling=choice_of(sampling, choice),
                adapter=adapter,
                cache_salt=body["cache_salt"] or "",
                priority=body["priority"],
                deadline=now + service.config.max_seconds,
            )
            answers.append(Answer(request, text, index=index, prompt=place))
        service.metrics.asked(len(ids), body["n"], sampling.max_tokens)
    writer = LogprobWriter(model.tokenizer, model.special, body["return_tokens_as_token_ids"])
    return Job(name, body["model"] or model.name, prompts, answers, writer)


def running(service: Service, job: Job) -> Answers:
    """Returns the context in which the job's choices run."""
    return Answers(job.answers, service.model.engine, service.handover, service.metrics)


@dataclasses.dataclass(frozen=True)
class StreamOptions:
    """Whether events tell of tokens used: at the end, and all along."""

    at_end: bool
    throughout: bool

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> "StreamOptions":
        """Returns the options of a request; raises the 400 of some without a stream."""
        given = body["stream_options"]
        if given is not None and not body["stream"]:
            raise invalid(at="stream_options", why="it is for streams: set stream to true, or leave it out")
        options = given or {}
        return cls(bool(options.get("include_usage")), bool(options.get("continuous_usage_stats")))

    def added_to(self, event: dict[str, Any], job: Job) -> dict[str, Any]:
        """Returns an event with what it has to say of usage."""
        if self.throughout:
            return event | {"usage": job.usage()}
        return event | {"usage": None} if self.at_end else event
