"""A plugin with a tiny experiment, two kernels and a device, as text: for tests of `kanawa kernels`."""

WORK = """
import dataclasses

import jax
import jax.numpy as jnp
import kanawa as kn
from kanawa.contracts import Program, Workload
from kanawa.kernels import CAUSAL, Kernel, Verdict
from kanawa.kernels.attention import attention
from kanawa.kernels.attention.reference import ReferenceAttention
from kanawa.plugins import DeviceSpec, hookimpl


class Attends(kn.Module):
    class Config(kn.Module.Config):
        pass

    def forward(self, q):
        return attention(q, q, q, mask=CAUSAL, scale=0.125)


class Work(Workload):
    class Config(Workload.Config):
        model: kn.Module.Config = Attends.Config()
        length: int = 16
        rows: int = 1

    def programs(self, environment):
        def step(q):
            return jax.grad(lambda q: (lambda out, outputs: (out.sum(), outputs))(*attend({}, {}, q)), has_aux=True)(q)

        attend = kn.functional(self.model)
        q = jax.ShapeDtypeStruct((self.config.rows, self.config.length, 2, 8), jnp.float32)
        return {"train_step": Program("train_step", step, (q,), environment=environment)}


class Locked(Kernel):
    name = "attention.gpu.locked"
    operation = "attention"
    fused = True

    def supports(self, problem, device):
        return Verdict(problem.q_length <= 16, f"q_length {problem.q_length} is over 16")

    def forward(self, problem, operands):
        raise ModuleNotFoundError("vendor_library")


class Slow(ReferenceAttention):
    name = "attention.cpu.slow"
    platforms = ("cpu",)
    priority = 99

    def apply(self, problem, operands):
        out = super().apply(problem, operands)
        big = jnp.ones((1500, 1500)) + out[0, 0, 0, 0]
        return out + 0 * jnp.tanh(big @ big @ big)[0, 0]

    def tunings(self, problem, device):
        return ((("block", 5),),)


@hookimpl
def kanawa_device_specs():
    sizes = ("memory_bytes", "memory_bandwidth", "link_bandwidth", "network_bandwidth")
    return [DeviceSpec(name="loom", platform="gpu", device_kinds=("Loom",), chips_per_host=8, source="here",
                       **dict.fromkeys(sizes, 1))]


def tiny():
    return Work.Config()
"""

ENTRY_POINTS = {
    "kanawa.plugins": ["fake-tiny = fake_tiny"],
    "kanawa.experiments": ["tiny = fake_tiny:tiny"],
    "kanawa.kernels": ["attention.gpu.locked = fake_tiny:Locked", "attention.cpu.slow = fake_tiny:Slow"],
}
