"""Evaluation by tasks: documents of files become requests, a model's answers become metrics with their errors."""
