"""What models in training make of held-out pictures and sounds, as media that reports show and play."""
