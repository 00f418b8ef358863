"""Grouped matrix products on NeuronCores."""
