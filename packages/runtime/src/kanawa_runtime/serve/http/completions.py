"""`/v1/completions`: texts or ids, gone on from; whole or as a stream, echoed and scored where asked."""

import functools
from collections.abc import AsyncIterator, Mapping
from typing import Any

from kanawa_runtime.serve.http.answers import Answer, Answers, Piece
from kanawa_runtime.serve.http.errors import invalid
from kanawa_runtime.serve.http.exchange import Exchange
from kanawa_runtime.serve.http.fields import Field, Flag, Shaped, Text, Whole
from kanawa_runtime.serve.http.jobs import STREAM_FIELDS, Job, StreamOptions, make_job, running
from kanawa_runtime.serve.http.long_json import json_bytes
from kanawa_runtime.serve.http.prompts import PromptKind
from kanawa_runtime.serve.http.sampling import IGNORED, sampling_fields
from kanawa_runtime.serve.http.service import Service
from kanawa_runtime.serve.http.structure import RESPONSE_FORMAT, STRUCTURED_OUTPUTS, grammar_of, structure_of

_DEFAULT_TOKENS = 16
_NO_SUFFIX = "no model here fills in the middle; give the text before it as prompt, and leave suffix out"
_KIND = "text_completion"


class Completions:
    """The endpoint."""

    def __init__(self, service: Service) -> None:
        self._service = service
        limits = service.model.engine.limits
        self.body = Shaped(
            {
                "model": Field(Text(256), help="one of /v1/models; may be left out"),
                "prompt": Field(PromptKind(limits, service.config), required=True),
                "max_tokens": Field(Whole(0, 2**31 - 1), help=f"{_DEFAULT_TOKENS} unless given; 0 scores with echo"),
                "echo": Field(Flag(), False, help="begin the answer with the prompt"),
                "logprobs": Field(Whole(0, limits.max_logprobs), help="of each token, and of so many likeliest ones"),
                "suffix": Field(Text(), refused=_NO_SUFFIX),
                "best_of": Field(Whole(1, service.config.max_n), help="n, or left out"),
                "add_special_tokens": Field(Flag(), True, help="begin a text as the tokenizer does"),
                "response_format": Field(RESPONSE_FORMAT),
                "structured_outputs": Field(STRUCTURED_OUTPUTS),
                **STREAM_FIELDS,
                **sampling_fields(limits, service.config),
            },
            ignored=IGNORED,
        )

    async def __call__(self, exchange: Exchange) -> None:
        """Answers a request."""
        service = self._service
        service.check_ready()
        body = await service.checked(self.body, exchange, is_queued=True)
        if body["best_of"] not in (None, body["n"]):
            raise invalid(at="best_of", why="choosing the best of several isn't offered; n gives them all")
        options = StreamOptions.of(body)
        grammar = await grammar_of(service, structure_of(body))
        job = await exchange.unless_gone(service.in_worker(self._job, body, grammar))
        # Between waiting for a thread and now the server may have been told to stop.
        service.check_ready()
        with service.counted(), running(service, job) as answers:
            if body["stream"]:
                await exchange.unless_gone(exchange.events(self._events(job, answers, body, options)))
            else:
                pieces = await exchange.unless_gone(answers.whole())
                made = functools.partial(self._whole, job, answers, body, pieces)
                await service.answer(exchange, made, is_long=job.is_long(body))

    def _job(self, body: Mapping[str, Any], grammar: Any) -> Job:
        service = self._service
        prompts, samplings = [], []
        scored = body
        if body["echo"] and body["prompt_logprobs"] is None:
            scored = {**body, "prompt_logprobs": body["logprobs"]}
        for index, prompt in enumerate(body["prompt"]):
            field = "prompt" if len(body["prompt"]) == 1 else f"prompt[{index}]"
            ids = service.prompts.ids(prompt, body, prefix=body["add_special_tokens"], field=field)
            asked = body["max_tokens"]
            # An engine gives one token at least: without any, that one is left out of the answer.
            least = None if asked is None else max(1, asked)
            most = service.prompts.room(ids, least, "max_tokens", otherwise=_DEFAULT_TOKENS)
            own = grammar if index == 0 or grammar is None else grammar.fork()
            samplings.append(service.sampling.read(scored, max_tokens=most, logprobs=body["logprobs"], grammar=own))
            prompts.append(ids)
        return make_job(service, body, "cmpl", prompts, samplings)

    def _whole(self, job: Job, answers: Answers, body: Mapping[str, Any], pieces: list[Piece]) -> dict[str, Any]:
        choices = [self._choice(job, answers.answers[i], piece, body, first=True) for i, piece in enumerate(pieces)]
        return job.head(_KIND) | {"choices": choices, "usage": job.usage(0 if body["max_tokens"] == 0 else None)}

    async def _events(
        self, job: Job, answers: Answers, body: Mapping[str, Any], options: StreamOptions
    ) -> AsyncIterator[dict[str, Any] | bytes]:
        begun: set[int] = set()
        async for changes in answers.pieces():
            for answer, piece in changes:
                first = answer.index not in begun
                begun.add(answer.index)
                made = functools.partial(self._event, job, answer, piece, body, options, first=first)
                # The first one may tell of a long prompt.
                is_long = first and job.is_long(body)
                yield await self._service.in_worker(lambda: json_bytes(made())) if is_long else made()  # noqa: B023
        if options.at_end:
            yield job.head(_KIND) | {"choices": [], "usage": job.usage(0 if body["max_tokens"] == 0 else None)}

    def _event(
        self, job: Job, answer: Answer, piece: Piece, body: Mapping[str, Any], options: StreamOptions, *, first: bool
    ) -> dict[str, Any]:
        choice = self._choice(job, answer, piece, body, first=first)
        return options.added_to(job.head(_KIND) | {"choices": [choice]}, job)

    def _choice(
        self, job: Job, answer: Answer, piece: Piece, body: Mapping[str, Any], *, first: bool
    ) -> dict[str, Any]:
        """Returns a choice of the response, or of an event: `first` where nothing of it has been sent."""
        reason = piece.finish_reason
        if body["max_tokens"] == 0:
            piece, reason = Piece(), reason and "length"
        number, ids = body["logprobs"], job.prompt_of(answer)
        text, logprobs, before = piece.text, None, 0
        echoed = None
        if body["echo"]:
            echoed, whole = job.writer.echoed(ids, answer.prompt_logprobs, number or 0)
            given = body["prompt"][answer.prompt]
            whole = given if isinstance(given, str) else whole
            before = len(whole)
            text = whole + text if first else text
        if number is not None:
            logprobs = job.writer.completion(piece, number, at=before)
            if echoed is not None and first:
                logprobs = {name: echoed[name] + logprobs[name] for name in logprobs}
        choice: dict[str, Any] = {
            "index": answer.index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": reason,
            "stop_reason": answer.stop_reason if reason else None,
        }
        if body["prompt_logprobs"] is not None and first:
            choice["prompt_logprobs"] = job.writer.prompt(ids, answer.prompt_logprobs)
        if body["return_token_ids"]:
            choice["token_ids"] = piece.token_ids
            choice |= {"prompt_token_ids": list(ids)} if first else {}
        return choice
