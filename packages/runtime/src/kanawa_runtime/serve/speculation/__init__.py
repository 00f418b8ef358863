"""Speculative decoding: several tokens guessed, verified in one step, and none changed by it."""
