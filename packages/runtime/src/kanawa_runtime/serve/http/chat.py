"""`/v1/chat/completions`: conversations, by the model's own template; tools, formats, and deltas as they come."""

import functools
from collections.abc import AsyncIterator, Mapping
from typing import Any

from kanawa_runtime.serve.http.answers import Answer, Answers, Piece
from kanawa_runtime.serve.http.errors import invalid
from kanawa_runtime.serve.http.exchange import Exchange
from kanawa_runtime.serve.http.fields import AnyObject, Field, Flag, Shaped, Text, Whole
from kanawa_runtime.serve.http.jobs import STREAM_FIELDS, Job, StreamOptions, make_job, running
from kanawa_runtime.serve.http.messages import for_template, message_fields
from kanawa_runtime.serve.http.sampling import IGNORED, sampling_fields
from kanawa_runtime.serve.http.service import Service
from kanawa_runtime.serve.http.structure import RESPONSE_FORMAT, STRUCTURED_OUTPUTS, grammar_of, structure_of
from kanawa_runtime.serve.http.tool_calls import CallReader, Tools, message_of

_MOST_TOP_LOGPROBS = 20


class Chat:
    """The endpoint."""

    def __init__(self, service: Service) -> None:
        self._service = service
        limits = service.model.engine.limits
        most = min(_MOST_TOP_LOGPROBS, limits.max_logprobs)
        self.body = Shaped(
            {
                "model": Field(Text(256), help="one of /v1/models; may be left out"),
                **message_fields(service.config),
                "max_completion_tokens": Field(Whole(1, 2**31 - 1), help="what fits, unless given"),
                "max_tokens": Field(Whole(1, 2**31 - 1), help="the older name of max_completion_tokens"),
                "logprobs": Field(Flag(), False),
                "top_logprobs": Field(Whole(0, most)),
                "add_generation_prompt": Field(Flag(), True),
                "add_special_tokens": Field(Flag(), False, help="begin the text as the tokenizer does"),
                "chat_template_kwargs": Field(AnyObject(), help="further variables of the template"),
                "response_format": Field(RESPONSE_FORMAT),
                "structured_outputs": Field(STRUCTURED_OUTPUTS),
                **STREAM_FIELDS,
                **sampling_fields(limits, service.config),
            },
            ignored=(*IGNORED, "reasoning_effort", "verbosity", "prediction"),
        )

    async def __call__(self, exchange: Exchange) -> None:
        """Answers a request."""
        service = self._service
        service.check_ready()
        body = await service.checked(self.body, exchange, is_queued=True)
        if body["top_logprobs"] is not None and not body["logprobs"]:
            raise invalid(at="top_logprobs", why="it needs logprobs, set to true")
        options = StreamOptions.of(body)
        tools = Tools.of(body, service.model.template.source)
        structure = structure_of(body)
        if tools is not None and structure is None:
            structure = tools.structure(tuple(service.model.special.values())) if service.model.grammars else None
        elif tools is not None and tools.required:
            raise invalid(at="tool_choice", why="a call and another structure can't both be required; give one of them")
        grammar = await grammar_of(service, structure)
        job = await exchange.unless_gone(service.in_worker(self._job, body, grammar))
        service.check_ready()
        with service.counted(), running(service, job) as answers:
            if body["stream"]:
                await exchange.unless_gone(exchange.events(self._events(job, answers, body, options, tools)))
            else:
                pieces = await exchange.unless_gone(answers.whole())
                made = functools.partial(self._whole, job, answers, body, tools, pieces)
                await service.answer(exchange, made, is_long=job.is_long(body))

    def _job(self, body: Mapping[str, Any], grammar: Any) -> Job:
        service = self._service
        text = service.model.template.render(
            for_template(body["messages"]),
            body["tools"] if body["tool_choice"] != "none" else None,
            add_generation_prompt=body["add_generation_prompt"],
            extra=body["chat_template_kwargs"],
        )
        # Templates of chat models write the token that begins a text; the plain one is text alone.
        prefix = body["add_special_tokens"] or not service.model.template.own
        ids = service.prompts.ids(text, body, prefix=prefix, field="messages")
        field = "max_completion_tokens" if body["max_completion_tokens"] is not None else "max_tokens"
        most = service.prompts.room(ids, body[field], field)
        logprobs = (body["top_logprobs"] or 0) if body["logprobs"] else None
        sampling = service.sampling.read(body, max_tokens=most, logprobs=logprobs, grammar=grammar)
        return make_job(service, body, "chatcmpl", [ids], [sampling])

    def _whole(
        self, job: Job, answers: Answers, body: Mapping[str, Any], tools: Tools | None, pieces: list[Piece]
    ) -> dict[str, Any]:
        choices = []
        for answer, piece in zip(answers.answers, pieces, strict=True):
            reader = CallReader(tools)
            deltas = reader.push(piece.text) + reader.finish()
            choice = {"index": answer.index, "message": message_of(deltas)}
            choices.append(choice | self._rest(job, answer, piece, body, reader))
        head = job.head("chat.completion")
        if body["prompt_logprobs"] is not None:
            head["prompt_logprobs"] = job.writer.prompt(job.prompts[0], answers.answers[0].prompt_logprobs)
        if body["return_token_ids"]:
            head["prompt_token_ids"] = list(job.prompts[0])
        return head | {"choices": choices, "usage": job.usage()}

    async def _events(
        self, job: Job, answers: Answers, body: Mapping[str, Any], options: StreamOptions, tools: Tools | None
    ) -> AsyncIterator[dict[str, Any]]:
        head = job.head("chat.completion.chunk")
        readers: dict[int, CallReader] = {}
        async for changes in answers.pieces():
            for answer, piece in changes:
                # Not before its first token: what clients measure as time to it is the first event.
                if answer.index not in readers:
                    begin = {"index": answer.index, "delta": {"role": "assistant", "content": ""}}
                    yield options.added_to(head | {"choices": [begin | {"logprobs": None, "finish_reason": None}]}, job)
                reader = readers.setdefault(answer.index, CallReader(tools))
                deltas = reader.push(piece.text) + (reader.finish() if piece.finish_reason else [])
                # What a token gains besides text, and the end, has an event even where there is nothing to show.
                deltas = deltas or ([{}] if piece.finish_reason or piece.logprobs else [])
                last = len(deltas) - 1
                for place, delta in enumerate(deltas):
                    given = piece if place == last else Piece()
                    choice = {"index": answer.index, "delta": delta} | self._rest(job, answer, given, body, reader)
                    yield options.added_to(head | {"choices": [choice]}, job)
        if options.at_end:
            yield head | {"choices": [], "usage": job.usage()}

    def _rest(
        self, job: Job, answer: Answer, piece: Piece, body: Mapping[str, Any], reader: CallReader
    ) -> dict[str, Any]:
        reason = piece.finish_reason
        if reason == "stop" and reader.num_calls:
            reason = "tool_calls"
        logprobs = job.writer.chat(piece, body["top_logprobs"] or 0) if body["logprobs"] and piece.token_ids else None
        rest: dict[str, Any] = {"logprobs": logprobs, "finish_reason": reason}
        if reason:
            rest["stop_reason"] = answer.stop_reason
        return rest | ({"token_ids": piece.token_ids} if body["return_token_ids"] else {})
