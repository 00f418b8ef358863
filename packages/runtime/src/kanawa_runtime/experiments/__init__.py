"""Experiments: functions that return a Trainer config; models are named by catalog, never imported."""
