"""Diagonal recurrence: h_t = a_t h_(t-1) + x_t for each channel on its own."""

from kanawa.kernels.diagonal_recurrence.dispatch import diagonal_recurrence as diagonal_recurrence
