"""Hook implementations of sashimono-layers; imports only sashimono.plugins and the standard library."""
