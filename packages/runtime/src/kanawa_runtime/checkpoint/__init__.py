"""Checkpoints: saved asynchronously, verified when restored, kept by rule."""

from kanawa_runtime.checkpoint.checkpointer import Checkpointer as Checkpointer
from kanawa_runtime.checkpoint.errors import CheckpointDamagedError as CheckpointDamagedError
from kanawa_runtime.checkpoint.errors import CheckpointError as CheckpointError
from kanawa_runtime.checkpoint.errors import CheckpointNotFoundError as CheckpointNotFoundError
from kanawa_runtime.checkpoint.errors import CheckpointSaveError as CheckpointSaveError
from kanawa_runtime.checkpoint.errors import CheckpointStructureError as CheckpointStructureError
from kanawa_runtime.checkpoint.restore import Restored as Restored
