"""Grouped matrix product: rows sorted by group, each group with a matrix of its own.

The public call is `kanawa.kernels.grouped_matmul`, defined in `dispatch`.
"""
