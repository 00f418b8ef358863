"""Recurrent and linear sequence mixers; each fits the attention slot of any block."""
