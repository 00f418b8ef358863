"""Attention on NeuronCores."""
