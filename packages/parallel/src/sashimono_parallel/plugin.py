"""Hook implementations of sashimono-parallel; imports only sashimono.plugins and the standard library."""
