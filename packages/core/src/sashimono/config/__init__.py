"""sashimono.config."""
