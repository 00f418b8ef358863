"""A kernel: one way to compute an operation on one platform."""

from kanawa.cli.scaffold.kinds import Kind

_KERNEL = '''"""grouped_matmul.cpu.$distribution: every group's product for every row, then a choice."""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from kanawa.kernels import Kernel, Verdict

MOST_GROUPS = 64


class $class_name(Kernel):
    """Rows [M, I] in groups times matrices [G, I, O]. JAX differentiates through it."""

    name: ClassVar[str] = "grouped_matmul.cpu.$distribution"
    operation: ClassVar[str] = "grouped_matmul"
    platforms: ClassVar[tuple[str, ...]] = ("cpu",)
    priority: ClassVar[int] = 10
    autodiff: ClassVar[bool] = True

    def supports(self, problem: Any, device: Any) -> Verdict:
        """Returns support, or a reason with the value found and the limit: users read that sentence."""
        del device
        if problem.groups > MOST_GROUPS:
            return Verdict(ok=False, reason=f"{problem.groups} groups, takes at most {MOST_GROUPS}")
        return Verdict(ok=True)

    def forward(self, problem: Any, operands: Mapping[str, Any]) -> tuple[jax.Array, None]:
        """Returns out [M, O] in the dtype of lhs; rows past the last group are zero."""
        lhs, rhs, sizes = operands["lhs"], operands["rhs"], operands["group_sizes"]
        ends = jnp.cumsum(sizes)
        rows = jnp.arange(problem.rows, dtype=ends.dtype)
        mine = (rows[:, None] < ends[None]) & (rows[:, None] >= (ends - sizes)[None])
        products = jnp.einsum("mi,gio->mgo", lhs, rhs, preferred_element_type=jnp.float32)
        out = jnp.where(mine[..., None], products, 0.0).sum(1)
        return out.astype(lhs.dtype), None
'''

_TESTS = '''"""The plugin passes the kit that Kanawa's own packages pass."""

from kanawa.testing.kernel import KernelConformance
from kanawa.testing.plugin import PluginConformance

from $package.kernel import $class_name


class TestPlugin(PluginConformance):
    distribution = "$distribution"


class Test$class_name(KernelConformance):
    def kernel(self):
        return $class_name()
'''

KIND = Kind(
    sources={"kernel.py": _KERNEL},
    entry_points={"kernels": {"grouped_matmul.cpu.$distribution": "kernel:$class_name"}},
    conformance=_TESTS,
    usage="kanawa kernels quickstart --modify moe",
)
