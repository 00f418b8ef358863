"""The process of its own in which a kernel is compiled: `python -m kanawa_kernel_tools.schedules.worker FOLDER`."""

import json
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from kanawa.arrays.plan import ExecutionPlan, use_plan
from kanawa.errors import KanawaError, TargetError
from kanawa.kernels.selection import tuned
from kanawa.plugins import ScheduleRequest, component, host

from kanawa_kernel_tools.schedules.compiled import ANSWER, REQUEST, halves
from kanawa_kernel_tools.schedules.pallas_calls import grid_of, outputs_of, pallas_calls, step_flops, tables_of


def main(folder: Path) -> None:
    """Compiles what `folder` asks for and writes the answer there."""
    request: ScheduleRequest = pickle.loads((folder / REQUEST).read_bytes())
    try:
        answer: dict[str, Any] = {"calls": list(_compiled(request, folder))}
    except KanawaError as error:
        answer = {"error": str(error)}
    except Exception as error:  # noqa: BLE001 (a stranger's kernel may raise anything; the caller reports it)
        answer = {"error": f"{type(error).__name__}: {str(error)[:2000]}"}
    (folder / ANSWER).write_text(json.dumps(answer), encoding="utf-8")


def _compiled(request: ScheduleRequest, folder: Path) -> Iterator[dict[str, Any]]:
    target = request.target
    offered = [devices for _, devices in host().collect("kanawa_topology", target=target) if devices]
    if not offered:
        message = f"no installed backend compiles for {target.selector}"
        raise TargetError(message)
    mesh = Mesh(np.array(offered[0][:1]), ("device",), axis_types=(AxisType.Auto,))
    device = target.device
    options: dict[str, Any] = {}
    for _, offered_options in host().collect("kanawa_compiler_options", device=device, purpose="train"):
        options |= offered_options
    kernel = tuned(component("kernels", request.kernel)(), request.tuning)
    kind = device.device_kinds[0] if device.device_kinds else None
    plan = ExecutionPlan(platform=device.platform, device_kind=kind)
    count, forward = 0, set()
    with jax.set_mesh(mesh), use_plan(plan):
        for half in halves(kernel, request.problem, request.differentiated):
            traced = jax.jit(half.function).trace(*half.arguments)
            for name, eqn in pallas_calls(traced.jaxpr.jaxpr):
                # What JAX differentiates runs its forward again.
                if half.direction == "backward" and kernel.autodiff and name in forward:
                    continue
                forward.add(name)
                _compile(eqn, mesh, options)
                (folder / "dump").rename(folder / str(count))
                (folder / "dump").mkdir()
                count += 1
                figures = {"grid": grid_of(eqn), "flops": step_flops(eqn), "outputs": outputs_of(eqn)}
                tables = tables_of(traced.jaxpr, eqn)
                yield {"name": name, "direction": half.direction, **figures, "tables": tables}


def _compile(eqn: Any, mesh: Mesh, options: dict[str, Any]) -> None:
    """Compiles one call alone: what surrounds it in a program takes longer and leaves its schedule as it is."""
    whole = NamedSharding(mesh, PartitionSpec())
    called = jax.jit(lambda *operands: eqn.primitive.bind(*operands, **eqn.params), in_shardings=whole)
    shapes = [jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype) for x in eqn.invars]
    called.lower(*shapes).compile(compiler_options=options)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
