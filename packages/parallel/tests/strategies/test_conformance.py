"""Every strategy of the package gives the loss and gradients of one device."""

from typing import ClassVar

from kanawa.contracts import CausalLM, MeshBuilder, Strategy
from kanawa.testing.strategy import StrategyConformance as Kit
from kanawa_parallel.mesh import StandardMesh
from kanawa_parallel.strategies.data import DataParallel
from kanawa_parallel.strategies.expert import ExpertParallel
from kanawa_parallel.strategies.fsdp import FSDP
from kanawa_parallel.strategies.ring import RingAttention
from kanawa_parallel.strategies.tensor import TensorParallel
from tiny_lm import TinyLM


class OnTinyLM(Kit):
    def model(self) -> CausalLM:
        return TinyLM.Config(input_dim=16, vocab_size=64).build()


class TestDataParallel(OnTinyLM):
    def strategies(self) -> tuple[Strategy, ...]:
        return (DataParallel.Config().build(),)

    def mesh_builder(self) -> MeshBuilder:
        return StandardMesh.Config(axes={"data": -1}).build()


class TestFSDP(OnTinyLM):
    sharded: ClassVar[tuple[str, ...]] = ("table", "layer.feed_forward.up", "layer.feed_forward.down")

    def strategies(self) -> tuple[Strategy, ...]:
        return (FSDP.Config().build(),)

    def mesh_builder(self) -> MeshBuilder:
        return StandardMesh.Config(axes={"fsdp": 8}).build()


class TestHybrid(OnTinyLM):
    def strategies(self) -> tuple[Strategy, ...]:
        return (FSDP.Config().build(),)

    def mesh_builder(self) -> MeshBuilder:
        return StandardMesh.Config(axes={"data": 2, "fsdp": 4}).build()


class TestTensor(OnTinyLM):
    """Heads, width and vocabulary over tensor; the rest of each parameter over fsdp."""

    sharded: ClassVar[tuple[str, ...]] = ("table", "layer.feed_forward.up", "layer.feed_forward.down")

    def strategies(self) -> tuple[Strategy, ...]:
        return (TensorParallel.Config().build(), FSDP.Config().build())

    def mesh_builder(self) -> MeshBuilder:
        return StandardMesh.Config(axes={"fsdp": 4, "tensor": 2}).build()


class TestContext(OnTinyLM):
    """A model without attention: the compiler splits its sequences by the rules alone."""

    def strategies(self) -> tuple[Strategy, ...]:
        return (RingAttention.Config().build(), ExpertParallel.Config().build())

    def mesh_builder(self) -> MeshBuilder:
        return StandardMesh.Config(axes={"expert": 2, "context": 4}).build()
