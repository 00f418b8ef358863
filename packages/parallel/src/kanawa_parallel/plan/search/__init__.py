"""Looks for the mesh, rematerialisation and microbatches with which a workload's step is quickest on its hardware."""
