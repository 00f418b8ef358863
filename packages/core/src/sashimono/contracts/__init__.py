"""sashimono.contracts."""
