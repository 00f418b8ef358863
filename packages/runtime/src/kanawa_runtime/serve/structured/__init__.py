"""Structured output: which tokens may come next in JSON of a schema, a regular expression, a choice or a grammar."""
