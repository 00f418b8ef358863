"""Matmuls of quantised operands: 8-bit activations and weights, or weights alone in 8 or 4 bits."""

from kanawa.kernels.quantized_matmul.dispatch import quantized_matmul as quantized_matmul
