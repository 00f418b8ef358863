"""Routes of every server: models, health, metrics, version, other weights, and a page to chat on."""

import asyncio
import base64
import hashlib
import logging
import re
from collections.abc import Iterator
from functools import partial
from importlib.resources import files
from typing import Any

from kanawa.errors import KanawaError

from kanawa_runtime._version import __version__
from kanawa_runtime.serve.http.errors import ApiError, unavailable, unprocessable
from kanawa_runtime.serve.http.exchange import Exchange
from kanawa_runtime.serve.http.protocol import LoadRequest
from kanawa_runtime.serve.http.route import HTML, TAKES, TEXT, Operation
from kanawa_runtime.serve.http.service import Service

logger = logging.getLogger(__name__)


def routes(service: Service) -> Iterator[Operation]:
    """Yields the routes."""
    models, load = partial(_answer_models, service), partial(_answer_load, service)
    health, metrics = partial(_answer_health, service), partial(_answer_metrics, service)
    loads = (*TAKES, 403, 422, 429, 503)
    yield Operation("GET", "/v1/models", "List models", models, "api")
    yield Operation("GET", "/v1/models/{name}", "Show a model", models, "api", refuses=(404,))
    yield Operation("POST", "/load", "Load other weights", load, "admin", LoadRequest, refuses=loads)
    yield Operation("GET", "/health", "Alive?", health, refuses=(503,))
    ready = partial(health, ready=True)
    yield Operation("GET", "/ready", "Does it take requests?", ready, refuses=(503,))
    yield Operation("GET", "/metrics", "Prometheus metrics", metrics, kinds=(TEXT,))
    yield Operation("GET", "/version", "Version", _answer_version)
    yield Operation("GET", "/", "A page to chat on", _Page(), kinds=(HTML,))


async def _answer_models(service: Service, exchange: Exchange) -> None:
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


async def _answer_health(service: Service, exchange: Exchange, *, ready: bool = False) -> None:
    """Answers 200 as long as the engine has not failed; with `ready`, only while requests are accepted."""
    phase = service.current_phase
    if ready or phase == "failed":
        service.check_ready()
    await exchange.answer({"status": phase})


async def _answer_version(exchange: Exchange) -> None:
    """Answers with the version of this package."""
    await exchange.answer({"version": __version__})


async def _answer_metrics(service: Service, exchange: Exchange) -> None:
    """Answers with Prometheus' text."""
    await exchange.answer(service.metrics.text(), kind="text/plain; version=0.0.4; charset=utf-8")


async def _answer_load(service: Service, exchange: Exchange) -> None:
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


class _Page:
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
