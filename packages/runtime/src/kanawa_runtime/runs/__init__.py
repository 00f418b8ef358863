"""A run on disk: its files, its events and its lock; opening a finished one, averaging, and models from elsewhere."""
