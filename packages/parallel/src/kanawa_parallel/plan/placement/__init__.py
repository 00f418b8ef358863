"""Placement: mesh, rematerialisation and microbatches for an experiment on a target, where no rule of the user fits."""
