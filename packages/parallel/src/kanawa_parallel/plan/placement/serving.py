"""Where a served model's weights lie: split over as many devices as make a decoding step quickest."""

import dataclasses
import itertools
import logging
from collections.abc import Iterable
from typing import cast

from kanawa.composition.placement import PlacementQuestion
from kanawa.config import Config
from kanawa.contracts import Workload
from kanawa.errors import KanawaError, UsageError
from kanawa.module import Module
from kanawa.plugins import MeshRule

from kanawa_parallel.divisibility import mesh_problems
from kanawa_parallel.plan.placement.remembered import key_of, remembered
from kanawa_parallel.plan.report.units import format_bytes, format_seconds
from kanawa_parallel.plan.search.space import experts_of
from kanawa_parallel.plan.serving_room import Decoding, Row

logger = logging.getLogger(__name__)

#: The step by which meshes compare: so many sequences of so many tokens.
_BATCH, _CONTEXT = 32, 2048
#: How many of the others are named.
_NAMED = 3
Axes = dict[str, int]


def answer(question: PlacementQuestion) -> MeshRule | None:
    """Returns the mesh on which a decoding step is quickest, of those that hold the weights; None for no model."""
    devices = question.target.jax_devices // question.target.slices
    config = question.config(_rule(question, {"fsdp": devices}))
    return remembered(("decode", *key_of(question, config)), lambda: _quickest(question, config, devices))


def _quickest(question: PlacementQuestion, config: Config, devices: int) -> MeshRule | None:
    found: list[tuple[bool, float, Axes, Decoding, Row]] = []
    for axes in _meshes(question, config, devices):
        if "fsdp" in axes and any(not full for full, *_ in found):
            # Gathering weights for each token is for those that fit no other way.
            break
        try:
            composition = question.composed(_rule(question, axes))
            decoding = Decoding(composition)
        except UsageError:
            return None
        except KanawaError as error:
            logger.info("serving on %s refused: %s", axes, error)
            continue
        taken = dict(composition.config.execution.mesh.axes)
        if taken != axes:
            # The user's own mesh.
            return _rule(question, axes)
        row = decoding.row(_BATCH, _CONTEXT)
        found.append((decoding.free <= 0, row.step_seconds, axes, decoding, row))
    if not found:
        return None
    found.sort(key=lambda one: (one[0], one[1], len(one[2])))
    (_, _, axes, decoding, row), *others = found
    text = (
        f"{_text(axes)}: {format_seconds(row.step_seconds)} to decode a token of {_BATCH} sequences with {_CONTEXT:,} "
        f"tokens, {format_bytes(decoding.weights)} of weights of {format_bytes(decoding.limit)} a device"
    )
    if decoding.free <= 0:
        text += "; the weights don't fit"
        logger.warning("%s: %s", question.target.selector, text)
    after = "; ".join(
        f"{_text(axes)} {format_seconds(row.step_seconds)}{', does not fit' if full else ''}"
        for full, _, axes, _, row in others[:_NAMED]
    )
    return dataclasses.replace(_rule(question, axes), reason=f"{text}{f'; next: {after}' if after else ''}")


def _rule(question: PlacementQuestion, axes: Axes) -> MeshRule:
    across = {"data": question.target.slices} if question.target.slices > 1 else {}
    return MeshRule(name="placement", platform=question.target.device.platform, mesh=axes, dcn=across)


def _meshes(question: PlacementQuestion, config: Config, devices: int) -> Iterable[Axes]:
    """Returns the meshes that the model's sizes divide by: what splits weights first, and copies for what is left."""
    target = question.target
    if dict(config.execution.mesh.axes) != {"fsdp": devices}:
        return [{"fsdp": devices}]
    model = config.model.build()
    domain = min(devices, target.device.domain_chips * target.device.jax_devices_per_chip)
    experts = experts_of(model)
    sizes = [size for size in range(devices, 0, -1) if devices % size == 0]
    made = []
    # Copies first: parameters in shards are gathered for every token.
    for name in ("data", "fsdp"):
        for tensor, expert in itertools.product((size for size in sizes if size <= domain), sizes):
            rest, over = divmod(devices, tensor * expert)
            axes = {axis: size for axis, size in ((name, rest), ("expert", expert), ("tensor", tensor)) if size > 1}
            if not over and experts % expert == 0 and axes and axes not in made:
                made.append(axes)
    return (axes for axes in made if not _refused(question, axes, model))


def _refused(question: PlacementQuestion, axes: Axes, model: Module) -> bool:
    """Returns whether the mesh doesn't divide a parameter's size; the engine spreads no rows."""
    config = cast(Workload.Config, question.config(_rule(question, axes)))
    problems = mesh_problems(config, model, question.target.jax_devices, question.target.slices)
    return any("batch is" not in problem for problem in problems)


def _text(axes: Axes) -> str:
    return " x ".join(f"{name} {size}" for name, size in axes.items())
