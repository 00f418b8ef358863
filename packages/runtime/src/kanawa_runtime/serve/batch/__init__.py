"""Batch inference: a file of prompts answered by the engine, in order, over as many starts as it takes."""
