"""Builds an engine's core from its config: the paged model, shapes, programs, scheduler, and optional parts."""

import logging

import numpy as np
from kanawa.contracts import CausalLM, Environment
from kanawa.errors import UsageError

from kanawa_runtime.runs.open_run import OpenedRun
from kanawa_runtime.serve.engine.adapter_slots import AdapterSlots
from kanawa_runtime.serve.engine.config import EngineConfig
from kanawa_runtime.serve.engine.core import EngineCore
from kanawa_runtime.serve.engine.page_pool import PagePool
from kanawa_runtime.serve.engine.page_transfer import PageTransfer
from kanawa_runtime.serve.engine.paged_model import paged_model
from kanawa_runtime.serve.engine.picture_tower import picture_tower, with_whole_pictures
from kanawa_runtime.serve.engine.programs import Programs, decoding_environment, prefers_outputs_first
from kanawa_runtime.serve.engine.request import RequestError
from kanawa_runtime.serve.engine.scheduler import Scheduler
from kanawa_runtime.serve.engine.shapes import Shapes
from kanawa_runtime.serve.engine.speculation import Draft, Speculation
from kanawa_runtime.serve.engine.speculator import Speculator

logger = logging.getLogger(__name__)

_DEFAULT_LENGTH = 2048


def continuing_model(run: OpenedRun) -> CausalLM:
    """Returns the model of an opened run or folder; raises UsageError for one that continues no texts."""
    model = run.trainer.model
    if not isinstance(model, CausalLM):
        message = f"{run.directory} holds a {type(model).__name__}, which generates no text: only causal models do"
        raise UsageError(message)
    if type(model).hidden_token(model.config) is not None:
        message = (
            f"{run.directory} holds a model that fills in hidden tokens, and an engine continues texts; use kanawa "
            "generate, with one --prompt or several"
        )
        raise UsageError(message)
    return model


def build_core(
    model: CausalLM,
    config: EngineConfig,
    environment: Environment,
    known: np.ndarray | None,
    draft: Draft | None,
    trained_length: int | None = None,
) -> EngineCore:
    """Returns the core without parameters; raises UsageError where config, model and draft don't fit."""
    max_length = _max_length(model, config, trained_length)
    config = with_whole_pictures(config, model)
    adapters = AdapterSlots(model, config.adapter_slots, config.adapter_rank) if config.adapter_slots else None
    programs = _programs(model if adapters is None else adapters.model, config, environment, max_length, known)
    paged, shapes = programs.paged, programs.shapes
    tower = programs.tower
    transfer = speculator = None
    if config.transfers_pages:
        transfer = PageTransfer(programs)
        programs.extensions.append(transfer)
    if config.speculative_tokens:
        programs.speculation = Speculation(programs, config, max_length, draft)
        programs.extensions.append(programs.speculation)
        speculator = Speculator(
            config.speculative_tokens, config.ngram_min, config.ngram_max, has_draft=draft is not None
        )
    elif draft is not None:
        message = "there is a draft model, but speculative_tokens is 0; set how many tokens it guesses"
        raise UsageError(message)
    if draft is not None and tower is not None:
        message = "a draft model sees no pictures, which this model reads; serve it without --draft"
        raise UsageError(message)
    if adapters is not None and tower is not None:
        adapters.share(tower.reads(adapters.model))
    if config.prefix_cache and paged.has_slots:
        logger.info("prefixes aren't reused: the model has states of whole sequences, which pages don't hold")
    scheduler = Scheduler(
        max_sequences=config.max_sequences,
        max_length=max_length,
        page_size=config.page_size,
        pool=PagePool(paged.num_pages if paged.has_pages else 0),
        budget=config.max_batched_tokens,
        chunk=config.prefill_tokens,
        fused_steps=config.fused_steps,
        prefill_sizes=shapes.prefill_sizes,
        reuses_prefixes=config.prefix_cache and paged.has_pages and not paged.has_slots,
        has_pages=paged.has_pages,
        guess=None if speculator is None else speculator.guess,
        in_tiles=shapes.in_tiles,
        fuses_draws=config.draws_only,
        most_chunks=shapes.prefill_rows[-1] if shapes.in_tiles else None,
        whole_pictures=tower is not None and tower.tokens.both_ways,
        short_budget=(
            shapes.prefill_rows[0] * shapes.prefill_sizes[0] if shapes.in_tiles else config.max_batched_tokens // 4
        ),
    )
    return EngineCore(programs, scheduler, max_length, adapters, speculator, transfer, config.call_seconds, tower)


def _max_length(model: CausalLM, config: EngineConfig, trained_length: int | None) -> int:
    longest = model.longest_sequence()
    known = [length for length in (longest, trained_length) if length is not None]
    max_length = config.max_length or min([*known, _DEFAULT_LENGTH])
    if longest is not None and max_length > longest:
        message = f"max_length is {max_length}, but the model has positions for {longest} tokens"
        raise RequestError(message, "max_length")
    if trained_length is not None and max_length > trained_length:
        logger.warning(
            "max_length is %d, and the model was trained on sequences of %d: what it writes beyond may make no sense; "
            "--modify rope-yarn:factor=… and its siblings stretch rotary positions",
            max_length, trained_length,
        )  # fmt: skip
    return max_length


def _programs(
    model: CausalLM, config: EngineConfig, environment: Environment, max_length: int, known: np.ndarray | None
) -> Programs:
    environment = decoding_environment(environment)
    compute = environment.plan.precision.compute
    dtype, traits = config.cache_dtype or compute, environment.plan.traits
    bits = traits.converts_whole_arrays and dtype == compute and not config.int8_cache
    outputs_first = environment.mesh is None and prefers_outputs_first(environment, model)
    paged = paged_model(model, config, max_length, dtype, bits=bits, outputs_first=outputs_first)
    if paged.has_pages and dtype != compute and not config.int8_cache:
        message = (
            f"cache_dtype is {dtype!r}, but the model computes in {compute!r}, and attention reads pages as they are; "
            "leave cache_dtype unset, or for a smaller cache set int8_cache"
        )
        raise UsageError(message)
    # An int8 cache is restored before it is read, as wide as the table.
    any_width = traits.reads_filled_pages and not config.int8_cache
    shapes = Shapes.of(config, max_length, has_pages=paged.has_pages, has_slots=paged.has_slots, any_width=any_width)
    programs = Programs(model, paged, config, shapes, environment, known)
    programs.tower = picture_tower(programs, model, config)
    if programs.tower is not None:
        programs.extensions.append(programs.tower)
    return programs
