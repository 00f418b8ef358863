"""Reinforcement learning: rollouts of the model in training by the serving engine, rewarded and trained on."""
