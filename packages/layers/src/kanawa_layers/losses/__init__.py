"""Losses as pure functions of fp32 arrays: one value an example or token, to be weighted and summed by the caller."""
