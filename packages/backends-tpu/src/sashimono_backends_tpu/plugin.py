"""Hook implementations of sashimono-backends-tpu; imports only sashimono.plugins and the standard library."""
