"""Grouped matmul: rows sorted by group, each group with a matrix of its own."""

from kanawa.kernels.grouped_matmul.dispatch import grouped_matmul as grouped_matmul
