"""Every strategy of the package gives the loss and gradients of one device."""

from typing import ClassVar

from kanawa.contracts import CausalLM, Strategy
from kanawa.testing.strategy import StrategyConformance as Kit
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

    def mesh_axes(self) -> dict[str, int]:
        return {"data": -1}


class TestFSDP(OnTinyLM):
    sharded: ClassVar[tuple[str, ...]] = ("table", "layer.feed_forward.up", "layer.feed_forward.down")

    def strategies(self) -> tuple[Strategy, ...]:
        return (FSDP.Config().build(),)

    def mesh_axes(self) -> dict[str, int]:
        return {"fsdp": 8}


class TestHybrid(OnTinyLM):
    def strategies(self) -> tuple[Strategy, ...]:
        return (FSDP.Config().build(),)

    def mesh_axes(self) -> dict[str, int]:
        return {"data": 2, "fsdp": 4}


class TestTensor(OnTinyLM):
    """Heads, width and vocabulary over tensor; the rest of each parameter over fsdp."""

    sharded: ClassVar[tuple[str, ...]] = ("table", "layer.feed_forward.up", "layer.feed_forward.down")

    def strategies(self) -> tuple[Strategy, ...]:
        return (TensorParallel.Config().build(), FSDP.Config().build())

    def mesh_axes(self) -> dict[str, int]:
        return {"fsdp": 4, "tensor": 2}


class TestContext(OnTinyLM):
    """A model without attention: the compiler splits its sequences by the rules alone."""

    def strategies(self) -> tuple[Strategy, ...]:
        return (RingAttention.Config().build(), ExpertParallel.Config().build())

    def mesh_axes(self) -> dict[str, int]:
        return {"expert": 2, "context": 4}
