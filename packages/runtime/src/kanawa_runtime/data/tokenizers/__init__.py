"""Text to token ids and back, without loss."""
