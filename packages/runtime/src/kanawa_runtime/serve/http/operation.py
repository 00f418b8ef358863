"""What operators ask: models, health, readiness, metrics, version, other weights, and the document of all routes."""

import asyncio
import logging
from typing import Any

from kanawa.errors import KanawaError

from kanawa_runtime._version import __version__
from kanawa_runtime.serve.http.errors import ApiError, unavailable, unprocessable
from kanawa_runtime.serve.http.exchange import Exchange
from kanawa_runtime.serve.http.fields import Field, Shaped, Whole
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
    """Alive: 200 as long as the engine has not failed. Also ready: 200 only while requests are taken."""

    def __init__(self, service: Service, *, ready: bool = False) -> None:
        self._service = service
        self._ready = ready

    async def __call__(self, exchange: Exchange) -> None:
        """Answers with the phase."""
        phase = self._service.current_phase
        if self._ready or phase == "failed":
            self._service.check_ready()
        await exchange.answer({"status": phase})


class Version:
    """The version of this package."""

    async def __call__(self, exchange: Exchange) -> None:
        """Answers with it."""
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
    """Other weights of the served model: the newest checkpoint of its run, or a given one."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.body = Shaped({"step": Field(Whole(0, 2**63 - 1), help="a checkpoint; the newest unless given")})

    async def __call__(self, exchange: Exchange) -> None:
        """Answers once the engine has them; requests that run go on with them."""
        service, model = self._service, self._service.model
        service.check_ready()
        body = self.body.read(exchange.json(await exchange.content()), "")
        reload = model.reload
        if reload is None:
            raise unprocessable(at="", why="this server's weights came from no folder that they could be read from")
        if service.loading.locked():
            message = "other weights are being loaded already; ask again once they are there"
            raise ApiError(429, message, code="already_loading", headers={"Retry-After": "5"})
        async with service.loading:
            try:
                weights = await asyncio.to_thread(reload, body["step"])
                await asyncio.to_thread(model.engine.load, weights.params, weights.state)
            except KanawaError as error:
                raise unprocessable(at="step", why=str(error)) from error
            except (OSError, MemoryError) as error:
                logger.warning("weights were not loaded", exc_info=True)
                message = f"the weights can't be read: {error}"
                raise unavailable(message, 10, "not_loaded") from error
        model.step = weights.step
        await exchange.answer({"status": "loaded", "step": weights.step})
