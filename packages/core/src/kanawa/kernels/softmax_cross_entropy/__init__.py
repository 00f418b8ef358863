"""Cross entropy of a vocabulary projection, from hidden states, without keeping all logits.

The public call is `kanawa.kernels.softmax_cross_entropy`, defined in `dispatch`.
"""
