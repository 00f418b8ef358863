"""RMSNorm on NeuronCores."""
