"""A feed-forward, its modifier and an attention kernel, as a plugin."""
