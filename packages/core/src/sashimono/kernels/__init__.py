"""sashimono.kernels."""
