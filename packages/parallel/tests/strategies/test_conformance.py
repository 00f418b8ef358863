"""Every strategy of the package gives the loss and gradients of one device."""

from typing import ClassVar

from sashimono.contracts import MeshBuilder, Strategy
from sashimono.testing.strategy import StrategyConformance
from sashimono_parallel.mesh import StandardMesh
from sashimono_parallel.strategies.data import DataParallel
from sashimono_parallel.strategies.fsdp import FSDP


class TestDataParallel(StrategyConformance):
    def strategies(self) -> tuple[Strategy, ...]:
        return (DataParallel.Config().build(),)

    def mesh_builder(self) -> MeshBuilder:
        return StandardMesh.Config(axes={"data": -1}).build()


class TestFSDP(StrategyConformance):
    sharded: ClassVar[tuple[str, ...]] = ("table", "layer.feed_forward.up", "layer.feed_forward.down")

    def strategies(self) -> tuple[Strategy, ...]:
        return (FSDP.Config().build(),)

    def mesh_builder(self) -> MeshBuilder:
        return StandardMesh.Config(axes={"fsdp": 8}).build()


class TestHybrid(StrategyConformance):
    def strategies(self) -> tuple[Strategy, ...]:
        return (FSDP.Config().build(),)

    def mesh_builder(self) -> MeshBuilder:
        return StandardMesh.Config(axes={"data": 2, "fsdp": 4}).build()
