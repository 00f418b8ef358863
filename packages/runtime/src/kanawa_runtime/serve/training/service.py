"""The training service: sessions, models and samplers of clients, each key's apart from every other's."""

import asyncio
import dataclasses
import functools
import logging
import secrets
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
from kanawa.errors import UsageError

from kanawa_runtime.serve.engine.engine import LLMEngine
from kanawa_runtime.serve.engine.request import QueueFullError, RequestError, SamplingParams
from kanawa_runtime.serve.http.errors import ApiError, invalid, refused_by_engine, shown
from kanawa_runtime.serve.http.served_model import ServedModel
from kanawa_runtime.serve.http.shares import FairPool
from kanawa_runtime.serve.training import requests
from kanawa_runtime.serve.training.adapters import AdamStep, AdapterKind, BaseModel
from kanawa_runtime.serve.training.losses import LOSSES
from kanawa_runtime.serve.training.promises import Promises
from kanawa_runtime.serve.training.samplers import SampleOrder, Sampler, Samplers, stops_of
from kanawa_runtime.serve.training.saved import SavedAdapters, SavedError
from kanawa_runtime.serve.training.tenants import InOrder, Tenant, TrainingError, tenant_of
from kanawa_runtime.serve.training.wire import ForwardBackward

logger = logging.getLogger(__name__)
_SAMPLERS_A_CLIENT = 4096


@dataclasses.dataclass
class Session:
    """A client's session."""

    owner: str
    seen_at: float = dataclasses.field(default_factory=time.monotonic)


@dataclasses.dataclass
class Trained:
    """A model of a client: its place in the order of requests, and the model once it is made."""

    owner: str
    session_id: str
    order: InOrder
    tenant: Tenant | None = None

    @property
    def made(self) -> Tenant:
        """The model; raises TrainingError where it could not be made."""
        if self.tenant is None:
            message = "the model was not made: the request that should have made it failed"
            raise TrainingError(message)
        return self.tenant


class TrainingService:
    """Everything a client may ask for; used in the server's loop. Requests run on one thread, clients in turns."""

    def __init__(self, model: ServedModel, base: BaseModel, folder: Path) -> None:
        assert isinstance(model.engine, LLMEngine)
        self.model, self.base, self.config = model, base, base.config
        self.saved = SavedAdapters(folder)
        self.samplers = Samplers(model.engine, model.tokenizer, base.config.max_samplers)
        self.promises = Promises()
        self._sessions: dict[str, Session] = {}
        self._models: dict[str, Trained] = {}
        self._drawn_from: dict[str, Sampler] = {}
        self._pool = FairPool(1, "kanawa-training")

    # --- sessions ------------------------------------------------------------------------------------------------

    def begin(self, owner: str) -> str:
        """Returns a new session's id."""
        name = uuid.uuid4().hex
        self._sessions[name] = Session(owner)
        return name

    def session(self, session_id: str, owner: str) -> Session:
        """Returns a client's session, seen now; raises the 404 of any other."""
        session = self._sessions.get(session_id)
        if session is None or session.owner != owner:
            raise _unknown(field="session_id", name=session_id, what="session")
        session.seen_at = time.monotonic()
        return session

    def finish(self, session_id: str, owner: str) -> None:
        """Ends a session: its models make room."""
        self.session(session_id, owner)
        del self._sessions[session_id]
        for name in [name for name, each in self._models.items() if each.session_id == session_id]:
            self._models.pop(name).order.close()

    def trained(self, model_id: str, owner: str) -> Trained:
        """Returns a client's model; raises the 404 of any other."""
        trained = self._models.get(model_id)
        if trained is None or trained.owner != owner:
            raise _unknown(field="model_id", name=model_id, what="model in training")
        return trained

    def sampler(self, name: str, owner: str) -> Sampler:
        """Returns a client's sampler; raises the 404 of any other."""
        sampler = self._drawn_from.get(name)
        if sampler is None or sampler.owner != owner:
            raise _unknown(field="sampling_session_id", name=name, what="sampling session")
        return sampler

    # --- models --------------------------------------------------------------------------------------------------

    async def create(self, asked: requests.CreateModelRequest, owner: str) -> str:
        """Begins to make a model; returns the id of the request."""
        self.session(asked.session_id, owner)
        self._check_base(asked.base_model)
        wanted = asked.lora_config
        if wanted is None:
            raise invalid(at="lora_config", why="it is missing: this server trains adapters, and no whole model")
        if wanted.rank > self.config.max_rank:
            raise invalid(at="lora_config.rank", why=f"it is {wanted.rank}, expected at most {self.config.max_rank}")
        self._check_optimizer(asked.optimizer_config)
        kind = AdapterKind(wanted.rank, wanted.train_attn, wanted.train_mlp)
        seed = secrets.randbelow(2**31) if wanted.seed is None else wanted.seed % 2**31
        model_id = f"{asked.session_id}:train:{asked.model_seq_id}"

        def make() -> Tenant:
            adapted = self.base.adapted(kind)
            return Tenant(model_id, owner, self.model.name, adapted, adapted.initial(seed))

        return await self._make(model_id, asked.session_id, owner, make, {"model_id": model_id, "type": "create_model"})

    async def load(self, asked: requests.LoadRequest, owner: str) -> str:
        """Begins to load a checkpoint into a model, or into a new one; returns the id of the request."""
        if asked.model_id is not None and asked.seq_id is not None:
            trained = self.trained(asked.model_id, owner)
            done = {"path": asked.path, "model_id": asked.model_id, "type": "load_weights"}

            def load() -> dict[str, Any]:
                trained.made.load(self.saved.load(asked.path, owner), optimizer=asked.optimizer)
                return done

            return self._ordered(trained, asked.model_id, asked.seq_id, load)
        if asked.session_id is None or asked.model_seq_id is None:
            raise invalid(at="model_id", why="expected model_id and seq_id, or session_id and model_seq_id")
        self.session(asked.session_id, owner)
        if asked.base_model is not None:
            self._check_base(asked.base_model)
        self._check_optimizer(asked.optimizer_config)
        model_id = f"{asked.session_id}:train:{asked.model_seq_id}"

        def make() -> Tenant:
            return tenant_of(self.saved.load(asked.path, owner), self.base, model_id, owner, optimizer=asked.optimizer)

        done = {"path": asked.path, "model_id": model_id, "type": "load_weights"}
        return await self._make(model_id, asked.session_id, owner, make, done)

    async def _make(
        self, model_id: str, session_id: str, owner: str, make: Callable[[], Tenant], done: dict[str, Any]
    ) -> str:
        name = f"{model_id}:0"
        if self.promises.has(name):
            return name
        await self._make_room()
        order = InOrder(0, self.config.max_pending, self.config.gap_seconds)
        trained = self._models[model_id] = Trained(owner, session_id, order)

        def made() -> dict[str, Any]:
            trained.tenant = make()
            return done

        return self._ordered(trained, model_id, 0, made)

    async def _make_room(self) -> None:
        """Gives up models of clients that are gone; raises the 429 where all are in use."""
        if len(self._models) < self.config.max_models:
            return
        until = time.monotonic() - self.config.session_seconds
        gone = [
            name
            for name, each in self._models.items()
            if self._sessions[each.session_id].seen_at < until and each.order.used_at < until
        ]
        if not gone:
            message = f"{self.config.max_models} models are in training here (training.max_models); ask again later"
            raise ApiError(429, message, code="models_full", headers={"Retry-After": "10"})
        for name in gone:
            logger.info("model %s is given up: its client is gone", name)
            self._models.pop(name).order.close()

    def forward_backward(self, asked: ForwardBackward, owner: str) -> str:
        """Begins a pass; returns the id of the request. Raises the ApiError of rows that can't be trained on."""
        trained = self.trained(asked.model_id, owner)
        try:
            checked = self._checked(asked)
        except ApiError:
            # Those behind it would wait for ever.
            trained.order.skip(asked.seq_id)
            raise
        return self._ordered(trained, asked.model_id, asked.seq_id, lambda: trained.made.forward_backward(checked))

    def optim_step(self, asked: requests.OptimStepRequest, owner: str) -> str:
        """Begins an update; returns the id of the request."""
        trained, adam = self.trained(asked.model_id, owner), asked.adam_params
        step = AdamStep(
            adam.learning_rate, adam.beta1, adam.beta2, adam.eps, adam.weight_decay, max(0.0, adam.grad_clip_norm)
        )
        return self._ordered(trained, asked.model_id, asked.seq_id, lambda: trained.made.optim_step(step))

    def save(self, asked: requests.SaveRequest, owner: str) -> str:
        """Begins to save a model with its optimizer's state; returns the id of the request."""
        trained = self.trained(asked.model_id, owner)
        address = self._address(trained, asked.seq_id, asked.model_id, "weights", asked.path)

        def save() -> dict[str, Any]:
            if not asked.overwrite and self.saved.is_taken(address):
                message = f"{address} is there already: choose another name, or set overwrite"
                raise TrainingError(message)
            made = trained.made
            self.saved.save(address, made.about(), made.arrays(optimizer=True))
            return {"path": address, "type": "save_weights"}

        return self._ordered(trained, asked.model_id, asked.seq_id, save)

    def save_for_sampler(self, asked: requests.SaveForSamplerRequest, owner: str) -> str:
        """Begins to put a model's adapter where it can be sampled from; returns the id of the request."""
        trained = self.trained(asked.model_id, owner)
        if asked.path is None and asked.sampling_session_seq_id is None:
            trained.order.skip(asked.seq_id)
            raise invalid(at="path", why="expected a name, or sampling_session_seq_id")
        address = None
        if asked.path is not None:
            address = self._address(trained, asked.seq_id, asked.model_id, "sampler_weights", asked.path)

        def save() -> dict[str, Any]:
            made = trained.made
            if address is not None:
                self.saved.save(address, made.about(), made.arrays(optimizer=False))
                return {"path": address, "type": "save_weights_for_sampler"}
            name = f"{trained.session_id}:sample:{asked.sampling_session_seq_id}"
            self._add_sampler(Sampler(name, owner, made.adapted.stored(made.adapter)))
            return {"sampling_session_id": name, "type": "save_weights_for_sampler"}

        return self._ordered(trained, asked.model_id, asked.seq_id, save)

    def info(self, model_id: str, owner: str) -> dict[str, Any]:
        """Returns what is known of a model."""
        made = self.trained(model_id, owner).made
        data = {"model_name": self.model.name, "tokenizer_id": self.model.name, "arch": type(self.base.model).__name__}
        kind = made.adapted.kind
        return {"model_id": model_id, "model_data": data, "is_lora": True, "lora_rank": kind.rank, "type": "get_info"}

    # --- samples -------------------------------------------------------------------------------------------------

    async def begin_sampling(self, asked: requests.SamplingSessionRequest, owner: str) -> str:
        """Returns the id of a sampling session, of what is saved at an address or of the base model."""
        self.session(asked.session_id, owner)
        name = f"{asked.session_id}:sample:{asked.sampling_session_seq_id}"
        if name in self._drawn_from:
            return name
        if asked.model_path is None:
            self._check_base(asked.base_model or self.model.name)
            self._add_sampler(Sampler(name, owner))
            return name
        try:
            saved = await asyncio.to_thread(self.saved.load, asked.model_path, owner)
            tenant = await self._pool.run(owner, lambda: tenant_of(saved, self.base, name, owner, optimizer=False))
        except (SavedError, UsageError) as error:
            raise invalid(at="model_path", why=str(error)) from error
        self._add_sampler(Sampler(name, owner, tenant.adapted.stored(tenant.adapter), asked.model_path))
        return name

    async def sample(self, asked: requests.SampleRequest, owner: str, client: str) -> dict[str, Any]:
        """Begins to draw samples; returns the ids of the request and of each sample. Raises ApiError."""
        sampler = self.sampler(asked.sampling_session_id, owner)
        name = f"{sampler.name}:{asked.seq_id}"
        ids = [f"{name}:{number}" for number in range(asked.num_samples)]
        if not self.promises.has(name):
            order = self._order(asked)
            try:
                self.samplers.check(order)
                await self.samplers.seat(sampler)
                self.model.engine.check_room()
            except (QueueFullError, RequestError) as error:
                raise refused_by_engine(error) or error from error
            self.promises.add(name, owner, self._drawn(sampler, order, client))
        return {"request_id": name, "sample_sequence_ids": ids}

    async def _drawn(self, sampler: Sampler, order: SampleOrder, client: str) -> bytes:
        sampler.running += 1
        try:
            await self.samplers.seat(sampler)
            return await self.samplers.draw(sampler, order, client)
        finally:
            sampler.running -= 1

    def _order(self, asked: requests.SampleRequest) -> SampleOrder:
        params, limits = asked.sampling_params, self.model.engine.limits
        prompt = tuple(token for chunk in asked.prompt.chunks for token in chunk.tokens)
        if any(chunk.type != "encoded_text" for chunk in asked.prompt.chunks):
            raise invalid(at="prompt", why="expected tokens: this model takes text alone")
        if asked.prompt_logprobs_last_n is not None and asked.prompt_logprobs_last_n >= len(prompt):
            raise invalid(at="prompt_logprobs_last_n", why=f"expected less than the prompt's {len(prompt)} tokens")
        room = max(1, limits.max_length - len(prompt))
        ids, texts = stops_of(params.stop, self.model.tokenizer)
        wants_prompt = asked.prompt_logprobs or asked.topk_prompt_logprobs
        sampling = SamplingParams(
            max_tokens=room if params.max_tokens is None else params.max_tokens,
            temperature=params.temperature,
            top_k=max(0, params.top_k),
            top_p=params.top_p,
            seed=None if params.seed is None else params.seed % 2**31,
            stop_token_ids=ids,
            logprobs=asked.topk_sample_logprobs,
            prompt_logprobs=asked.topk_prompt_logprobs if wants_prompt else None,
        )
        return SampleOrder(
            prompt, asked.num_samples, sampling, texts, asked.prompt_logprobs, asked.prompt_logprobs_last_n,
            asked.topk_prompt_logprobs, asked.topk_sample_logprobs,
        )  # fmt: skip

    def _add_sampler(self, sampler: Sampler) -> None:
        self._drawn_from[sampler.name] = sampler
        own = [one for one in self._drawn_from.values() if one.owner == sampler.owner]
        for old in own[: max(0, len(own) - _SAMPLERS_A_CLIENT)]:
            if not old.running:
                del self._drawn_from[old.name]

    def skip(self, asked: Any, owner: str) -> None:
        """Counts a refused request as done, as far as its JSON says which it was: those behind it don't wait for it."""
        model_id, number = (asked.get("model_id"), asked.get("seq_id")) if isinstance(asked, dict) else (None, None)
        trained = self._models.get(model_id) if isinstance(model_id, str) else None
        if trained is not None and trained.owner == owner and isinstance(number, int):
            trained.order.skip(number)

    # --- checks and order ----------------------------------------------------------------------------------------

    def _check_base(self, name: str) -> None:
        if name != self.model.name:
            message = f"base_model: {shown(name)} isn't served here; this server has {self.model.name!r}"
            raise ApiError(404, message, param="base_model", code="model_not_found")

    def _check_optimizer(self, asked: requests.OptimizerRequest) -> None:
        if asked.type != "adamw":
            raise invalid(at="optimizer_config.type", why=f"{shown(asked.type)} isn't offered, expected 'adamw'")

    def _checked(self, asked: ForwardBackward) -> ForwardBackward:
        """Returns the request with its rows' defaults; raises the 400 of the first thing that is wrong."""
        if asked.loss not in LOSSES:
            raise invalid(at="loss_fn", why=f"{shown(asked.loss)} isn't offered, expected one of {', '.join(LOSSES)}")
        if not asked.rows:
            raise invalid(at="data", why="it is empty")
        loss = LOSSES[asked.loss]
        for name, number in asked.options.items():
            if name not in loss.options or not np.isfinite(number):
                known = ", ".join(loss.options) or "none"
                raise invalid(at=f"loss_fn_config.{name[:60]}", why=f"{asked.loss} takes finite numbers for: {known}")
        rows = []
        for number, row in enumerate(asked.rows):
            at, inputs = f"data[{number}]", dict(row.inputs)
            if "target_tokens" in inputs and "weights" in loss.inputs:
                inputs.setdefault("weights", np.ones(len(inputs["target_tokens"]), np.float32))
            self._check_row(at, row.input_ids, inputs, ("target_tokens", *loss.inputs), asked.loss)
            rows.append(dataclasses.replace(row, inputs=inputs))
        return dataclasses.replace(asked, rows=tuple(rows))

    def _check_row(
        self, at: str, ids: np.ndarray, inputs: dict[str, np.ndarray], names: tuple[str, ...], loss: str
    ) -> None:
        limits = self.model.engine.limits
        if not 0 < len(ids) <= limits.max_length:
            raise invalid(
                at=f"{at}.model_input", why=f"it has {len(ids):,} tokens, expected 1 to {limits.max_length:,}"
            )
        if set(inputs) != set(names):
            raise invalid(at=f"{at}.loss_fn_inputs", why=f"it has {sorted(inputs)}; {loss} takes {sorted(names)}")
        for name, array in inputs.items():
            if len(array) != len(ids):
                why = f"it has {len(array):,} numbers, and model_input {len(ids):,} tokens: expected one for each"
                raise invalid(at=f"{at}.loss_fn_inputs.{name}", why=why)
            if not np.isfinite(array).all():
                raise invalid(at=f"{at}.loss_fn_inputs.{name}", why="it holds numbers that aren't finite")
        for name, tokens in (("model_input", ids), ("loss_fn_inputs.target_tokens", inputs["target_tokens"])):
            if tokens.dtype.kind != "i" or tokens.min() < 0 or tokens.max() >= limits.vocab_size:
                raise invalid(at=f"{at}.{name}", why=f"expected token ids, 0 to {limits.vocab_size - 1}")

    def _address(self, trained: Trained, number: int, model_id: str, kind: str, name: str | None) -> str:
        try:
            return self.saved.address(model_id, kind, name or f"{number:06d}")
        except SavedError as error:
            trained.order.skip(number)
            raise invalid(at="path", why=str(error)) from error

    def _ordered(self, trained: Trained, model_id: str, number: int, work: Callable[[], Any]) -> str:
        name = f"{model_id}:{number}"
        if self.promises.has(name):
            return name
        if trained.order.is_done(number):
            raise invalid(at="seq_id", why=f"request {number} is done or was refused; the next is {trained.order.next}")
        if not trained.order.has_room(number):
            message = (
                f"seq_id: request {number} has to wait for {trained.order.next}, and at most "
                f"{self.config.max_pending} may wait or run (training.max_pending)"
            )
            raise ApiError(429, message, code="training_queue_full", headers={"Retry-After": "1"})

        async def run() -> Any:
            begun: Callable[[], Awaitable[Any]] = functools.partial(self._pool.run, model_id, work)
            return await trained.order.run(number, begun)

        self.promises.add(name, trained.owner, run())
        return name

    def close(self) -> None:
        """Ends the thread, and what waits."""
        self.promises.close()
        self._pool.close()


def _unknown(field: str, name: str, what: str) -> ApiError:
    return ApiError(404, f"{field}: this key has no {what} {shown(name)}", param=field, code="not_found")
