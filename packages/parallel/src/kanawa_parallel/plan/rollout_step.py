"""A whole step of reinforcement learning: what is drawn, scored, trained on and handed over, each by the planner.

Generation is priced as the decoding program on the engine's shardings, scoring as the evaluation program: both are
traced and laid out on the target's mesh. Training is the plan's own step. What an engine's host does between two steps
and what rewards take aren't in it: of a tiny model that is more than all the rest.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from kanawa.composition.experiment import Composition
from kanawa.composition.target import Target
from kanawa.contracts import RolloutShape
from kanawa.plugins import DeviceSpec

from kanawa_parallel.plan.cost.calibration import calibration_for
from kanawa_parallel.plan.cost.links import Links
from kanawa_parallel.plan.memory.arguments import local_bytes
from kanawa_parallel.plan.programs.decode import ROLLOUT_DECODE
from kanawa_parallel.plan.quick.estimate import Estimate, estimated
from kanawa_parallel.plan.report.assemble import installed_versions
from kanawa_parallel.plan.report.report import Report
from kanawa_parallel.plan.report.units import format_bytes, format_count, format_seconds
from kanawa_parallel.plan.show.render import format_table

#: The parts of a step, in their order.
PARTS = ("hand_over", "prefill", "decode", "scoring", "training")


@dataclasses.dataclass(frozen=True)
class RolloutStep:
    """Seconds of one update by part, and what they are made of; a batch of rollouts serves `updates` of them.

    `decode_steps` are those of a batch: `waves` of as many sequences as the engines run at a time, one in each process.
    `step_seconds` is the sum of the parts, or the longer of drawing and training where they overlap.
    """

    step_seconds: float
    seconds_by: dict[str, float]
    updates: int
    waves: int
    decode_steps: int
    decode_step_seconds: float
    drawn_tokens: int
    drawn_tokens_per_second: float
    engine_weights_per_device_bytes: int
    #: Weights for the engine beside all that training holds.
    memory_per_device_bytes: int
    fits: bool


def rollout_step(composition: Composition, report: Report) -> RolloutStep | None:
    """Returns the step around a plan of `train_step`; None where its batches are data, or where it doesn't fit."""
    shape = composition.config.rollout_shape()
    if shape is None or report.step_seconds is None:
        return None
    target = composition.required_target()
    decode, forward = estimated(composition, ROLLOUT_DECODE), estimated(composition, "eval_step")
    length = composition.config.batch_shape().length
    pass_seconds = _seconds(forward)
    waves = 1 if shape.concurrent is None else math.ceil(shape.rows / (shape.concurrent * target.hosts))
    # The traced step decodes all rows at once; waves of fewer read the weights again, and share the rest.
    decode_seconds = _seconds(decode)
    steps = waves * shape.new_tokens
    weights = sum(map(local_bytes, jax.tree.leaves(decode.program.abstract_args[0])))
    batch = {
        "hand_over": _hand_over(decode, forward, weights, target),
        "prefill": pass_seconds * shape.prompt_tokens / length,
        "decode": decode_seconds * shape.new_tokens + (waves - 1) * shape.new_tokens * _read(weights, target.device),
        "scoring": pass_seconds * shape.scorings,
    }
    seconds = {name: value / shape.updates for name, value in batch.items()} | {"training": report.step_seconds}
    drawn = shape.rows * shape.new_tokens
    total = _total(seconds, shape)
    memory = report.memory_per_device_bytes + weights
    return RolloutStep(
        step_seconds=total,
        seconds_by={name: seconds[name] for name in PARTS},
        updates=shape.updates,
        waves=waves,
        decode_steps=steps,
        decode_step_seconds=batch["decode"] / steps,
        drawn_tokens=drawn,
        drawn_tokens_per_second=drawn / shape.updates / total,
        engine_weights_per_device_bytes=weights,
        memory_per_device_bytes=memory,
        fits=memory <= report.memory_limit_bytes,
    )


def render_rollouts(step: dict[str, Any]) -> str:
    """Returns a step's parts as text for a person."""
    total = sum(step["seconds_by"].values())
    rows = [
        (part.replace("_", "-"), format_seconds(seconds), f"{seconds / total:.1%}")
        for part, seconds in step["seconds_by"].items()
    ]
    rows.append(("step", format_seconds(step["step_seconds"]), ""))
    title = (
        f"a step with its rollouts: {format_count(step['drawn_tokens'])} tokens drawn for {step['updates']} "
        f"update{'' if step['updates'] == 1 else 's'} in {step['decode_steps']} decoding steps, "
        f"{format_count(step['drawn_tokens_per_second'])} a second; the engine's weights are "
        f"{format_bytes(step['engine_weights_per_device_bytes'])} a device"
        f"{'' if step['fits'] else ', which DO NOT FIT beside the training state'}"
    )
    return format_table(title, ("part", "time", "share"), rows)


def _total(seconds: dict[str, float], shape: RolloutShape) -> float:
    if not shape.overlaps:
        return sum(seconds.values())
    drawing = seconds["prefill"] + seconds["decode"]
    return max(drawing, seconds["training"] + seconds["scoring"]) + seconds["hand_over"]


def _seconds(estimate: Estimate) -> float:
    """Returns the calibrated seconds of a traced program."""
    return float(estimate.times.seconds.total)


def _hand_over(decode: Estimate, forward: Estimate, weights: int, target: Target) -> float:
    """Returns the seconds of gathering the trainer's weights, which come over the mesh, and of storing the engine's."""
    trained, engines = (jax.tree.leaves(each.program.abstract_args[0]) for each in (forward, decode))
    device, held = target.device, sum(map(local_bytes, trained))
    # In the trainer's dtype: the cast comes after.
    gathered = sum(
        local_bytes(mine) * jnp.dtype(theirs.dtype).itemsize / jnp.dtype(mine.dtype).itemsize
        for mine, theirs in zip(engines, trained, strict=True)
    )
    seconds = _read(held + weights, device)
    if gathered <= held:
        return seconds
    links = Links.of_devices(device, None, target.jax_devices)
    link = links.between(np.arange(target.jax_devices)[None])
    return seconds + links.seconds(gathered - held, link)


def _read(size: float, device: DeviceSpec) -> float:
    """Returns the seconds in which a device moves so many bytes of its own memory."""
    choice = calibration_for(device, installed_versions(device))
    bandwidth = device.memory_bandwidth / device.jax_devices_per_chip * choice.calibration.memory_share
    return float(size / bandwidth)
