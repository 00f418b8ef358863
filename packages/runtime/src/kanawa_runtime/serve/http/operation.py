"""Routes beside those for text: models, health, metrics, version, other weights, tokenizing; and a page to chat on."""

import asyncio
import base64
import contextlib
import hashlib
import logging
import re
from importlib.resources import files
from typing import Any

import numpy as np
from kanawa.errors import KanawaError

from kanawa_runtime._version import __version__
from kanawa_runtime.runs.tokenizer_file import TokenizerError
from kanawa_runtime.serve.http.chat_template import messages_for_template, rendered, tools_for_template
from kanawa_runtime.serve.http.errors import ApiError, invalid, unavailable, unprocessable
from kanawa_runtime.serve.http.exchange import Exchange
from kanawa_runtime.serve.http.large_requests import LARGE
from kanawa_runtime.serve.http.protocol import MAX_TOKENIZED, DetokenizeRequest, LoadRequest, TokenizeRequest
from kanawa_runtime.serve.http.service import Service

logger = logging.getLogger(__name__)


async def answer_models(service: Service, exchange: Exchange) -> None:
    """Answers with the model and its adapters, as OpenAI lists models, or with the one that the path names."""
    if "name" in exchange.scope.get("path_params", {}):
        service.adapter(exchange.path_name)
        return await exchange.answer(_card(service, exchange.path_name))
    cards = [_card(service, name) for name in service.model.names]
    return await exchange.answer({"object": "list", "data": cards})


def _card(service: Service, name: str) -> dict[str, Any]:
    model = service.model
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "kanawa",
        "root": model.name,
        "parent": None if name == model.name else model.name,
        "max_model_len": model.engine.limits.max_length,
        "step": model.step,
        "chat_template": "own" if model.template.own else "plain",
    }


async def answer_health(service: Service, exchange: Exchange, *, ready: bool = False) -> None:
    """Answers 200 as long as the engine has not failed; with `ready`, only while requests are accepted."""
    phase = service.current_phase
    if ready or phase == "failed":
        service.check_ready()
    await exchange.answer({"status": phase})


async def answer_version(exchange: Exchange) -> None:
    """Answers with the version of this package."""
    await exchange.answer({"version": __version__})


async def answer_metrics(service: Service, exchange: Exchange) -> None:
    """Answers with Prometheus' text."""
    await exchange.answer(service.metrics.text(), kind="text/plain; version=0.0.4; charset=utf-8")


async def answer_load(service: Service, exchange: Exchange) -> None:
    """Loads other weights of the served model: the newest checkpoint of its run, or a certain one.

    Answers once the engine has them; running requests continue with them.
    """
    model, reload = service.model, service.model.reload
    service.check_ready()
    request = await service.read_request(LoadRequest, exchange)
    if reload is None:
        raise unprocessable(at="", why="this server's weights came from no folder, so that there are no others")
    if service.loading.locked():
        message = "other weights are being loaded already; ask again once they are there"
        raise ApiError(429, message, code="already_loading", headers={"Retry-After": "5"})
    async with service.loading:
        try:
            weights = await asyncio.to_thread(reload, request.step)
            await asyncio.to_thread(model.engine.load, weights.params, weights.state)
        except KanawaError as error:
            raise unprocessable(at="step", why=str(error)) from error
        except (OSError, MemoryError) as error:
            logger.warning("weights were not loaded", exc_info=True)
            message = f"the weights can't be read: {error}"
            raise unavailable(message, 10, "not_loaded") from error
    model.step = weights.step
    await exchange.answer({"status": "loaded", "step": weights.step})


class Page:
    """Answers with the chat page, which loads nothing from anywhere, and a policy that allows it this server alone."""

    def __init__(self) -> None:
        self._html = files("kanawa_runtime.serve.http").joinpath("page.html").read_bytes()
        script, style = (_hashes(self._html, tag) for tag in (b"script", b"style"))
        self._policy = {
            "Content-Security-Policy": f"default-src 'none'; script-src {script}; style-src {style}; "
            "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            "Referrer-Policy": "no-referrer",
        }

    async def __call__(self, exchange: Exchange) -> None:
        """Answers a request."""
        await exchange.answer(self._html, headers=self._policy, kind="text/html; charset=utf-8")


def _hashes(html: bytes, tag: bytes) -> str:
    contents = re.findall(rb"<%s>(.*?)</%s>" % (tag, tag), html, re.DOTALL)
    digests = (base64.b64encode(hashlib.sha256(content).digest()).decode() for content in contents)
    return " ".join(f"'sha256-{digest}'" for digest in digests)


async def answer_tokenize(service: Service, body: type[TokenizeRequest], exchange: Exchange) -> None:
    """Answers with the ids of a text or of a conversation."""
    request = await service.read_request(body, exchange)
    service.adapter(request.model)
    await exchange.answer(await service.in_worker(exchange, _tokenized, service, request))


def _tokenized(service: Service, request: TokenizeRequest) -> bytes:
    model = service.model
    prefix, text = request.add_special_tokens, request.prompt
    if text is None:
        text = rendered(
            model.template,
            messages_for_template(request.messages or ()),
            tools_for_template(request.tools),
            add_generation_prompt=request.add_generation_prompt,
            extra=request.chat_template_kwargs,
        )
        prefix = not model.template.own if prefix is None else prefix
        if len(text) > MAX_TOKENIZED:
            why = f"they have {len(text):,} characters, expected at most {MAX_TOKENIZED:,}"
            raise invalid(at="messages", why=why)
    texts = service.large if len(text) >= LARGE else service.texts
    return texts.tokenized(text, prefix=prefix or prefix is None, with_texts=request.return_token_strs)


async def answer_detokenize(service: Service, body: type[DetokenizeRequest], exchange: Exchange) -> None:
    """Answers with the text of ids."""
    request = await service.read_request(body, exchange)
    service.adapter(request.model)
    texts = service.large if isinstance(request.tokens, np.ndarray) else service.texts
    await exchange.answer(await service.in_worker(exchange, texts.detokenized, request.tokens))


async def answer_tokenizer_info(service: Service, exchange: Exchange) -> None:
    """Answers with the texts of special tokens and the template: `lm-eval` counts a prompt's tokens with them."""
    model, tokenizer = service.model, service.model.tokenizer
    texts: dict[str, str | None] = {}
    for role in ("bos", "eos", "pad"):
        texts[f"{role}_token"] = None
        with contextlib.suppress(TokenizerError):  # the folder names none
            texts[f"{role}_token"] = model.special.get(getattr(tokenizer, f"{role}_id"))
    rest = {"model_max_length": model.engine.limits.max_length, "chat_template": model.template.source}
    await exchange.answer({"tokenizer_class": type(tokenizer).__name__} | texts | rest)
