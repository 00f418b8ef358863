"""Conversations, and prompts with completions, as rows to learn the answers of."""
