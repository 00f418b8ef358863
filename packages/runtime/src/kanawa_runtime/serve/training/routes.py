"""The routes of the training service: one for each request of the protocol."""

import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from kanawa.contracts import CausalLM

from kanawa_runtime.serve.http.config import TrainingConfig
from kanawa_runtime.serve.http.errors import ApiError, invalid
from kanawa_runtime.serve.http.exchange import Exchange
from kanawa_runtime.serve.http.route import Operation
from kanawa_runtime.serve.http.served_model import ServedModel
from kanawa_runtime.serve.http.service import Service
from kanawa_runtime.serve.training import requests
from kanawa_runtime.serve.training.adapters import BaseModel
from kanawa_runtime.serve.training.service import TrainingService
from kanawa_runtime.serve.training.wire import KIND, WireError, forward_backward_of

Body = TypeVar("Body", bound=requests.Asked)
_ROOT = "/api/v1/"
#: How long a request for an answer is held until it is told to ask again; the client waits 45 s.
_HOLD_SECONDS = 25.0
_CLIENT_CONFIG = {"proto_compress_fwdbwd": False, "use_pyqwest_transport": False}
_NO_HEAD = "this server adapts the projections of attention and feed-forward layers; train_unembed changes nothing here"


@dataclasses.dataclass(frozen=True)
class TrainingRoutes:
    """What `HttpServer` adds to its own routes, once its service is there."""

    training: TrainingService

    def operations(self, service: Service) -> list[Operation]:
        """Returns the routes."""
        handlers = _Handlers(service, self.training)
        found = (400, 404, 408, 410, 413, 415, 429, 503)

        def post(
            path: str, about: str, body: type[requests.Asked], work: Callable[[Any, str], Any], *, promised: bool = True
        ) -> Operation:
            return Operation("POST", _ROOT + path, about, handlers.of(body, work, promised), "api", body, refuses=found)

        def get(path: str, about: str, work: Any, **options: Any) -> Operation:
            return Operation("GET", _ROOT + path, about, work, **options)

        def raw(
            path: str, about: str, work: Any, body: type[requests.Asked] | None = None, **options: Any
        ) -> Operation:
            return Operation("POST", _ROOT + path, about, work, "api", body, **{"refuses": found, **options})

        def noted(path: str, about: str, answer: dict[str, Any]) -> Operation:
            return raw(path, about, handlers.noted(answer), refuses=(400, 408, 413, 415, 429))

        asked, training, now = requests, self.training, {"promised": False}
        both = ("application/json", KIND)
        return [
            get("healthz", "Alive?", handlers.health, refuses=(503,)),
            get("get_server_capabilities", "What is offered", handlers.capabilities, key="api"),
            get("samplers/{name}", "Show a sampling session", handlers.sampler, key="api", refuses=(404,)),
            noted("client/config", "How clients behave", _CLIENT_CONFIG),
            noted("client/dynamic_config", "How clients behave, now", {"sample_cancel_enabled": True}),
            noted("telemetry", "Discard what clients say of themselves", {"status": "accepted"}),
            post("create_session", "Begin", asked.SessionRequest, handlers.begin, **now),
            post("session_heartbeat", "Still there", asked.HeartbeatRequest, handlers.beat, **now),
            raw("sessions/{name}/finish", "End", handlers.finish),
            post("create_model", "Begin an adapter", asked.CreateModelRequest, training.create),
            post("get_info", "Show an adapter", asked.ModelRequest, handlers.info, **now),
            raw("forward_backward", "Differentiate", handlers.forward_backward),
            post("optim_step", "Update an adapter", asked.OptimStepRequest, training.optim_step),
            post("save_weights", "Save an adapter", asked.SaveRequest, training.save),
            post("save_weights_for_sampler", "Sample from it", asked.SaveForSamplerRequest, training.save_for_sampler),
            post("load_weights", "Load an adapter", asked.LoadRequest, training.load),
            post("create_sampling_session", "To sample", asked.SamplingSessionRequest, handlers.sampling, **now),
            raw("asample", "Sample", handlers.sample, asked.SampleRequest),
            raw("retrieve_future", "An answer", handlers.retrieve, asked.RetrieveRequest, kinds=both),
            raw("cancel_future", "Cancel", handlers.cancel, asked.CancelRequest),
        ]

    def close(self) -> None:
        """Ends what runs."""
        self.training.close()


def training_routes(model: ServedModel, config: TrainingConfig, folder: Path) -> TrainingRoutes:
    """Returns the routes of a served model that clients may train adapters of, saved below a folder."""
    opened = model.opened
    assert opened is not None and isinstance(opened.trainer.model, CausalLM)
    base = BaseModel(opened.trainer.model, opened.params, opened.state, opened.environment, config)
    return TrainingRoutes(TrainingService(model, base, folder))


class _Handlers:
    """Answers requests; `owner` is a key's digest, "" of everybody where no key is asked for."""

    def __init__(self, service: Service, training: TrainingService) -> None:
        self._service, self._training = service, training

    def _owner(self, exchange: Exchange) -> str:
        return exchange.client if self._service.keys.are_required else ""

    def of(
        self, body: type[Body], work: Callable[[Body, str], Any], promised: bool
    ) -> Callable[[Exchange], Awaitable[None]]:
        """Returns the handler that answers with what `work` returns; a promise is the id of its request."""

        async def handle(exchange: Exchange) -> None:
            self._service.check_ready()
            try:
                asked = await self._service.read_request(body, exchange)
            except ApiError as error:
                self._training.skip(error.received, self._owner(exchange))
                raise
            made = work(asked, self._owner(exchange))
            made = await made if isinstance(made, Awaitable) else made
            await exchange.answer({"request_id": made} if promised else made)

        return handle

    def noted(self, answer: dict[str, Any]) -> Callable[[Exchange], Awaitable[None]]:
        """Returns the handler that reads a request and always answers the same."""

        async def handle(exchange: Exchange) -> None:
            await exchange.content()
            exchange.release_body()
            await exchange.answer(answer)

        return handle

    async def health(self, exchange: Exchange) -> None:
        """Answers 200 while requests are taken."""
        self._service.check_ready()
        await exchange.answer({"status": "ok"})

    async def capabilities(self, exchange: Exchange) -> None:
        """Answers with the one base model."""
        longest = self._training.model.engine.limits.max_length
        one = {"model_name": self._training.model.name, "max_context_length": longest}
        await exchange.answer({"supported_models": [{**one, "trainable": True, "sampleable": True}]})

    async def sampler(self, exchange: Exchange) -> None:
        """Answers with what a sampling session is of."""
        sampler = self._training.sampler(exchange.path_name, self._owner(exchange))
        base = {"sampler_id": sampler.name, "base_model": self._training.model.name}
        await exchange.answer({**base, "model_path": sampler.address})

    def begin(self, asked: requests.SessionRequest, owner: str) -> dict[str, Any]:
        """Begins a session."""
        del asked
        return {"session_id": self._training.begin(owner), "type": "create_session", "info_message": _NO_HEAD}

    def beat(self, asked: requests.HeartbeatRequest, owner: str) -> dict[str, Any]:
        """Notes that a client is there."""
        self._training.session(asked.session_id, owner)
        return {"type": "session_heartbeat"}

    async def finish(self, exchange: Exchange) -> None:
        """Ends a session."""
        await exchange.content()
        exchange.release_body()
        self._training.finish(exchange.path_name, self._owner(exchange))
        await exchange.answer({})

    def info(self, asked: requests.ModelRequest, owner: str) -> dict[str, Any]:
        """Shows a model."""
        return self._training.info(asked.model_id, owner)

    async def sampling(self, asked: requests.SamplingSessionRequest, owner: str) -> dict[str, Any]:
        """Begins to sample."""
        name = await self._training.begin_sampling(asked, owner)
        return {"sampling_session_id": name, "type": "create_sampling_session"}

    async def forward_backward(self, exchange: Exchange) -> None:
        """Begins a pass over rows, which come as protobuf."""
        self._service.check_ready()
        content = await exchange.content(KIND)

        def read() -> Any:
            return forward_backward_of(content)

        try:
            asked = await self._service.in_worker(exchange, read)
        except WireError as error:
            self._training.skip({"model_id": error.model_id, "seq_id": error.seq_id}, self._owner(exchange))
            raise invalid(at=error.at, why=str(error).removeprefix(f"{error.at}: ")) from error
        finally:
            exchange.release_body()
        await exchange.answer({"request_id": self._training.forward_backward(asked, self._owner(exchange))})

    async def sample(self, exchange: Exchange) -> None:
        """Begins to draw samples."""
        self._service.check_ready()
        asked = await self._service.read_request(requests.SampleRequest, exchange)
        await exchange.answer(await self._training.sample(asked, self._owner(exchange), exchange.client))

    async def retrieve(self, exchange: Exchange) -> None:
        """Answers with what an earlier request came to; 408 where it takes longer, so that the client asks again."""
        asked = await self._service.read_request(requests.RetrieveRequest, exchange)
        try:
            async with exchange.while_connected():
                answer = await self._training.promises.wait(asked.request_id, self._owner(exchange), _HOLD_SECONDS)
        except KeyError:
            message = "request_id: there is no such request of this key, or its answer is no longer kept"
            raise ApiError(410, message, param="request_id", code="not_found") from None
        if answer is None:
            waits = {"type": "try_again", "request_id": asked.request_id, "queue_state": "active"}
            await exchange.answer(waits, status=408)
        elif isinstance(answer.content, bytes):
            await exchange.answer(answer.content, kind=KIND)
        else:
            await exchange.answer(answer.content)

    async def cancel(self, exchange: Exchange) -> None:
        """Ends a request."""
        asked = await self._service.read_request(requests.CancelRequest, exchange)
        self._training.promises.cancel(asked.request_id, self._owner(exchange))
        await exchange.answer({})
