"""Vectors and labels of texts: an engine that gathers them into batches by length."""
