"""Making pictures with a trained model."""
