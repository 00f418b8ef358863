"""Hook implementations of sashimono-backends-neuron; imports only sashimono.plugins and the standard library."""
