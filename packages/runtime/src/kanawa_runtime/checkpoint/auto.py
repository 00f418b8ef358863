"""`auto`, the default: the checkpointer that suits the place of a run."""

from typing import Any

from kanawa.contracts import Checkpointer, is_address

from kanawa_runtime.checkpoint.background import BackgroundCheckpointer
from kanawa_runtime.checkpoint.checkpointer import OrbaxCheckpointer
from kanawa_runtime.checkpoint.sharded import ShardedCheckpointer


class AutoCheckpointer(ShardedCheckpointer):
    """Orbax in a folder, `sharded` at an address; the event `run_started` and a line of the log name which it is.

    Orbax (0.12) takes `s3://` for a relative path, and needs a folder that all hosts share.
    """

    class Config(ShardedCheckpointer.Config):
        def build(self, **runtime: Any) -> Checkpointer:
            """Returns the checkpointer for the place `directory`, with this config's fields."""
            at_address = is_address(runtime["directory"])
            kind: type[BackgroundCheckpointer] = ShardedCheckpointer if at_address else OrbaxCheckpointer
            fields = {name: getattr(self, name) for name in kind.Config.fields()}
            chosen: Checkpointer = kind.Config(**fields).build(**runtime)
            return chosen
