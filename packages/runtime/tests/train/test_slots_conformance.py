"""Our checkpointer and loader pass the kit that a stranger's must."""

from kanawa.testing.checkpointer import CheckpointerConformance
from kanawa.testing.loader import LoaderConformance
from kanawa_runtime.checkpoint import AutoCheckpointer, OrbaxCheckpointer, ShardedCheckpointer
from kanawa_runtime.data.loader import GrainLoader


class TestOrbaxCheckpointer(CheckpointerConformance):
    def config(self):
        return OrbaxCheckpointer.Config()


class TestAutoCheckpointer(CheckpointerConformance):
    def config(self):
        return AutoCheckpointer.Config()


class TestGrainLoader(LoaderConformance):
    def config(self):
        return GrainLoader.Config()


class TestShardedCheckpointer(CheckpointerConformance):
    def config(self):
        return ShardedCheckpointer.Config(volume_bytes=64)
