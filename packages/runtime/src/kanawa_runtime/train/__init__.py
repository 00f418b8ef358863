"""The training loop and what it leaves in a run directory."""
