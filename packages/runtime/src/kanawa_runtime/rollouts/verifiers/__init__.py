"""Environments of the `verifiers` package as data, interaction and reward of rollouts."""
