"""Prefill and decoding in two engines: one takes prompts in and hands its pages over, the other one goes on."""
