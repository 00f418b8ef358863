"""Tuning and quantisation: adapters beside weights, other forms of weights, distillation."""
