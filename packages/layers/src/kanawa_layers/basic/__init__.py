"""Linear, embedding, norms and dropout."""
