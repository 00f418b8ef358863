"""Pictures from noise: what a model learns to predict, how it is sampled, and the parts of its network."""
