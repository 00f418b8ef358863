"""Hook implementations of sashimono-runtime; imports only sashimono.plugins and the standard library."""
