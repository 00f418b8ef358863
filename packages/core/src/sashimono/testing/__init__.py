"""sashimono.testing."""
