"""sashimono.cli."""
