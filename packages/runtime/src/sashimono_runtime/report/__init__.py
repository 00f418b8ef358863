"""One self-contained page about a run: curves, throughput, kernels, versions."""
