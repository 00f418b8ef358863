"""Mixtures of experts over shards: every shard routes its own tokens, and rows travel to the experts' shards."""
