"""Dense matrix multiplication of activations and a weight: projections, fused ones, heads and their gradients."""

from kanawa.kernels.matmul.dispatch import is_matmul as is_matmul
from kanawa.kernels.matmul.dispatch import matmul as matmul
from kanawa.kernels.matmul.dispatch import preferred_weight_layout as preferred_weight_layout
