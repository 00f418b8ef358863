"""Searches the mesh, rematerialisation and microbatches with which a step is quickest on its hardware."""
