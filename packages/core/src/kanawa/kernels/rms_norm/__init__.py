"""RMSNorm: rows scaled to root mean square 1, times a scale for each channel."""

from kanawa.kernels.rms_norm.dispatch import rms_norm as rms_norm
