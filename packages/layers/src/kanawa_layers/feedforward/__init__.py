"""Dense feed-forwards."""
