"""Tuning and quantisation: adapters, weight forms, distillation."""
