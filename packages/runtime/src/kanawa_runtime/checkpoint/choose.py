"""Which checkpointer writes where: orbax to folders, pieces of ours to addresses that orbax can't write to."""

from pathlib import Path

from kanawa.contracts import Checkpointer

from kanawa_runtime.checkpoint.checkpointer import OrbaxCheckpointer
from kanawa_runtime.checkpoint.sharded import ShardedCheckpointer


def checkpointer_for(chosen: Checkpointer.Config, directory: Path | str) -> Checkpointer.Config:
    """Returns the run's checkpointer as it was chosen; at an address, the one that can write there in place of orbax's.

    Orbax (0.12) takes `s3://` for a relative path, and has a folder that all hosts share in mind.
    """
    if isinstance(directory, Path) or not isinstance(chosen, OrbaxCheckpointer.Config):
        return chosen
    return ShardedCheckpointer.Config(
        timeout_seconds=chosen.timeout_seconds,
        patience_seconds=chosen.patience_seconds,
        volume_bytes=chosen.volume_bytes,
        tiers=tuple(tier.clone() for tier in chosen.tiers),
    )
