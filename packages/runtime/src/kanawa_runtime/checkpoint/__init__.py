"""Checkpoints: saved asynchronously, verified when restored, retained by rule."""

from kanawa_runtime.checkpoint.auto import AutoCheckpointer as AutoCheckpointer
from kanawa_runtime.checkpoint.checkpointer import OrbaxCheckpointer as OrbaxCheckpointer
from kanawa_runtime.checkpoint.errors import CheckpointDamagedError as CheckpointDamagedError
from kanawa_runtime.checkpoint.errors import CheckpointNotFoundError as CheckpointNotFoundError
from kanawa_runtime.checkpoint.errors import CheckpointStructureError as CheckpointStructureError
from kanawa_runtime.checkpoint.errors import CheckpointUnreadableError as CheckpointUnreadableError
from kanawa_runtime.checkpoint.sharded import ShardedCheckpointer as ShardedCheckpointer
