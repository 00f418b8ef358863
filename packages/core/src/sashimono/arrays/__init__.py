"""sashimono.arrays."""
