"""sashimono.compose."""
