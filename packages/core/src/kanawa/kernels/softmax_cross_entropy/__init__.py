"""Cross entropy of a vocabulary projection, from hidden states, without keeping all logits."""

from kanawa.kernels.softmax_cross_entropy.dispatch import softmax_cross_entropy as softmax_cross_entropy
