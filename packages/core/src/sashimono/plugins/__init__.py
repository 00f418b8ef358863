"""sashimono.plugins."""
