"""sashimono.module."""
