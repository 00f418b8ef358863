"""What lives beside a run, and the host that keeps it from disturbing the training."""
