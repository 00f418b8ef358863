"""Routes for operators: models, health, readiness, metrics, version, other weights; and a page to chat on."""

import asyncio
import base64
import hashlib
import logging
import re
from importlib.resources import files
from typing import Any

from kanawa.errors import KanawaError

from kanawa_runtime._version import __version__
from kanawa_runtime.serve.http.errors import ApiError, unavailable, unprocessable
from kanawa_runtime.serve.http.exchange import Exchange
from kanawa_runtime.serve.http.protocol import LoadRequest
from kanawa_runtime.serve.http.service import Service

logger = logging.getLogger(__name__)


class Models:
    """The model and its adapters, as OpenAI lists models."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, exchange: Exchange) -> None:
        """Answers with all of them, or with the one that the path names."""
        if "name" not in exchange.scope.get("path_params", {}):
            cards = [self._card(name) for name in self._service.model.names]
            return await exchange.answer({"object": "list", "data": cards})
        self._service.adapter(exchange.path_name)
        await exchange.answer(self._card(exchange.path_name))

    def _card(self, name: str) -> dict[str, Any]:
        model = self._service.model
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


class Health:
    """Alive: 200 as long as the engine has not failed. With `ready`: 200 only while requests are accepted."""

    def __init__(self, service: Service, *, ready: bool = False) -> None:
        self._service = service
        self._ready = ready

    async def __call__(self, exchange: Exchange) -> None:
        """Answers with the phase."""
        phase = self._service.current_phase
        if self._ready or phase == "failed":
            self._service.check_ready()
        await exchange.answer({"status": phase})


async def answer_version(exchange: Exchange) -> None:
    """Answers with the version of this package."""
    await exchange.answer({"version": __version__})


class MetricsPage:
    """Prometheus' text."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, exchange: Exchange) -> None:
        """Answers with all numbers."""
        text = self._service.metrics.text()
        await exchange.answer(text, kind="text/plain; version=0.0.4; charset=utf-8")


class Load:
    """Other weights of the served model: the newest checkpoint of its run, or a certain one."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, exchange: Exchange) -> None:
        """Answers once the engine has them; running requests continue with them."""
        service, model = self._service, self._service.model
        service.check_ready()
        request = await service.read_request(LoadRequest, exchange)
        reload = model.reload
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
