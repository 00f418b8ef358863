"""Flash attention in Pallas for GPUs: tiles, the blocks that are visited, and one file a kernel."""
