"""Matrix products of quantised operands: 8-bit activations and weights, or weights alone in 8 or 4 bits.

The public call is `kanawa.kernels.quantized_matmul`, defined in `dispatch`.
"""
