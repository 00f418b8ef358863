"""Rows of preferences: pairs of completions, and single ones judged good or bad."""
