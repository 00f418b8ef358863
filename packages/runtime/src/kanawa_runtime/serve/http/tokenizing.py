"""`/tokenize`, `/detokenize` and `/tokenizer_info`: texts to ids and back, by the model's own tokenizer."""

import contextlib
from collections.abc import Iterator
from functools import partial

import numpy as np

from kanawa_runtime.runs.tokenizer_file import TokenizerError
from kanawa_runtime.serve.http.chat_pictures import picture_parts
from kanawa_runtime.serve.http.chat_template import messages_for_template, rendered, tools_for_template
from kanawa_runtime.serve.http.errors import invalid
from kanawa_runtime.serve.http.exchange import Exchange
from kanawa_runtime.serve.http.large_requests import LARGE
from kanawa_runtime.serve.http.protocol import (
    MAX_TOKENIZED,
    DetokenizeRequest,
    TokenizeRequest,
    detokenize_request,
    tokenize_request,
)
from kanawa_runtime.serve.http.route import TAKES, Operation
from kanawa_runtime.serve.http.service import Service
from kanawa_runtime.serve.pictures.engine import DrawingEngine


def routes(service: Service) -> Iterator[Operation]:
    """Yields the routes of a model that reads texts."""
    if isinstance(service.model.engine, DrawingEngine) and not service.model.engine.wishes.is_text:
        return
    tokens, ids = tokenize_request(service.config), detokenize_request(service.model.engine.limits)
    tokenize, detokenize = partial(_answer_tokenize, service, tokens), partial(_answer_detokenize, service, ids)
    info = partial(_answer_tokenizer_info, service)
    yield Operation("POST", "/tokenize", "Tokenize", tokenize, "api", tokens, refuses=(*TAKES, 404, 422))
    yield Operation("POST", "/detokenize", "Detokenize", detokenize, "api", ids, refuses=(*TAKES, 404))
    yield Operation("GET", "/tokenizer_info", "Special tokens and template", info, "api")


async def _answer_tokenize(service: Service, body: type[TokenizeRequest], exchange: Exchange) -> None:
    """Answers with the ids of a text or of a conversation."""
    request = await service.read_request(body, exchange)
    service.adapter(request.model)
    await exchange.answer(await service.in_worker(exchange, _tokenized, service, request))


def _tokenized(service: Service, request: TokenizeRequest) -> bytes:
    model = service.model
    prefix, text = request.add_special_tokens, request.prompt
    count = 0
    if text is None:
        count, marks = len(picture_parts(service, request.messages or ())), model.pictures
        messages = messages_for_template(request.messages or ())
        text = rendered(
            model.template,
            messages if marks is None else marks.for_template(messages),
            tools_for_template(request.tools),
            add_generation_prompt=request.add_generation_prompt,
            extra=request.chat_template_kwargs,
        )
        prefix = not model.template.own if prefix is None else prefix
        if len(text) > MAX_TOKENIZED:
            why = f"they have {len(text):,} characters, expected at most {MAX_TOKENIZED:,}"
            raise invalid(at="messages", why=why)
    if count:
        ids = service.prompts.ids(text, prefix=bool(prefix), field="messages", num_pictures=count)
        return service.texts.listed(ids, with_texts=request.return_token_strs)
    texts = service.large if len(text) >= LARGE else service.texts
    return texts.tokenized(text, prefix=prefix or prefix is None, with_texts=request.return_token_strs)


async def _answer_detokenize(service: Service, body: type[DetokenizeRequest], exchange: Exchange) -> None:
    """Answers with the text of ids."""
    request = await service.read_request(body, exchange)
    service.adapter(request.model)
    texts = service.large if isinstance(request.tokens, np.ndarray) else service.texts
    await exchange.answer(await service.in_worker(exchange, texts.detokenized, request.tokens))


async def _answer_tokenizer_info(service: Service, exchange: Exchange) -> None:
    """Answers with the texts of special tokens and the template: `lm-eval` counts a prompt's tokens with them."""
    model, tokenizer = service.model, service.model.tokenizer
    texts: dict[str, str | None] = {}
    for role in ("bos", "eos", "pad"):
        texts[f"{role}_token"] = None
        with contextlib.suppress(TokenizerError):  # the folder names none
            texts[f"{role}_token"] = model.special.get(getattr(tokenizer, f"{role}_id"))
    rest = {"model_max_length": model.engine.limits.max_length, "chat_template": model.template.source}
    await exchange.answer({"tokenizer_class": type(tokenizer).__name__} | texts | rest)
