"""Kernels of the exchange of tokens between expert shards."""
