"""Diagonal recurrence: h_t = a_t h_(t-1) + x_t for each channel on its own.

The public call is `kanawa.kernels.diagonal_recurrence`, defined in `dispatch`.
"""
