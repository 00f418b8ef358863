"""Checkpoints: saved asynchronously, verified when restored, kept by rule."""

from sashimono_runtime.checkpoint.checkpointer import Checkpointer as Checkpointer
from sashimono_runtime.checkpoint.errors import CheckpointDamagedError as CheckpointDamagedError
from sashimono_runtime.checkpoint.errors import CheckpointError as CheckpointError
from sashimono_runtime.checkpoint.errors import CheckpointNotFoundError as CheckpointNotFoundError
from sashimono_runtime.checkpoint.errors import CheckpointSaveError as CheckpointSaveError
from sashimono_runtime.checkpoint.errors import CheckpointStructureError as CheckpointStructureError
from sashimono_runtime.checkpoint.restore import Restored as Restored
