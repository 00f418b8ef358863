"""Serving a trained model: sampling, generation, the engine and its HTTP server."""
