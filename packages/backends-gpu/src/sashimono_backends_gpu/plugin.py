"""Hook implementations of sashimono-backends-gpu; imports only sashimono.plugins and the standard library."""
