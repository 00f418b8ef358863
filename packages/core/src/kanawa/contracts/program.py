"""A program: a pure function with abstract arguments, ready to be traced, lowered and compiled for any devices."""

import contextlib
import dataclasses
import gc
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from kanawa.arrays.plan import ExecutionPlan, use_plan
from kanawa.module.outputs import Outputs
from kanawa.plugins.devices import lowered_as
from kanawa.status import stage


@dataclasses.dataclass(frozen=True)
class Environment:
    """Where programs run: the plan, the mesh (None: one device), and the platform's compiler options.

    `refused_options` are those a backend recommends and the installed compiler doesn't take, with its reasons.
    """

    plan: ExecutionPlan = ExecutionPlan()
    mesh: Mesh | AbstractMesh | None = None
    compiler_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    refused_options: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Puts plan and mesh in force for tracing and running."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(use_plan(self.plan))
            # An abstract mesh has no devices to set: it serves tracing and lowering for a machine that isn't here.
            if isinstance(self.mesh, Mesh):
                stack.enter_context(jax.set_mesh(self.mesh))
            elif self.mesh is not None:
                stack.enter_context(jax.sharding.use_abstract_mesh(self.mesh))
            yield


@dataclasses.dataclass(frozen=True)
class Lowered:
    """A lowered program and its manifest: the kernel every operation got, and why not the others."""

    lowered: jax.stages.Lowered
    kernels: tuple[Any, ...]
    environment: Environment
    name: str = ""

    def compile(self) -> jax.stages.Compiled:
        """Returns the compiled program, with the platform's compiler options."""
        options = dict(self.environment.compiler_options)
        with stage(f"compiling {self.name}".rstrip()):
            return self.lowered.compile(options or None)


@dataclasses.dataclass(frozen=True)
class Program:
    """`fn(*abstract_args)`; shardings ride on the abstract arguments, `donate` names argument positions."""

    name: str
    fn: Callable[..., Any]
    abstract_args: tuple[Any, ...]
    donate: tuple[int, ...] = ()
    out_shardings: Any = None
    environment: Environment = Environment()

    def jitted(self) -> Any:
        """Returns the jitted function; call it inside `environment.active()`."""
        options = {} if self.out_shardings is None else {"out_shardings": self.out_shardings}
        return jax.jit(self.fn, donate_argnums=self.donate, **options)

    def trace(self) -> jax.stages.Traced:
        """Traces for the environment's platform; no device is touched, and no compiler is needed."""
        with stage(f"tracing {self.name}"), self.environment.active(), _no_collection():
            traced: jax.stages.Traced = self.jitted().trace(*self.abstract_args)
            return traced

    def kernels(self) -> tuple[Any, ...]:
        """Returns the manifest: the kernel every operation gets on this environment's platform."""
        return manifest(self.trace().out_info)

    def lower(self) -> Lowered:
        """Traces and lowers for the environment's platform; no device is touched."""
        platform = self.environment.plan.platform
        traced = self.trace()
        with stage(f"lowering {self.name}"), self.environment.active(), _no_collection():
            lowered = traced.lower(lowering_platforms=(lowered_as(platform),)) if platform else traced.lower()
        return Lowered(lowered, manifest(traced.out_info), self.environment, self.name)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Pauses the garbage collector: tracing builds a large live graph, and walking it again finds nothing to free."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def manifest(tree: Any) -> tuple[Any, ...]:
    """Returns all kernel choices carried by the Outputs found in a tree."""
    kernels: dict[Any, None] = {}
    for node in jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, Outputs)):
        if isinstance(node, Outputs):
            kernels.update(dict.fromkeys(node.kernels))
    return tuple(kernels)
