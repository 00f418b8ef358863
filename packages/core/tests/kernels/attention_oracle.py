"""Attention in NumPy, float64, one query at a time: nothing in common with the code under test."""

import numpy as np


def attend(q, k, v, allowed, scale, bias=None, sinks=None, logit_cap=None):
    """Returns [B, T, H, Dv]; `allowed(b, t, s)` says who may attend to whom."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    batch, length, heads, _ = q.shape
    keys, kv_heads = k.shape[1:3]
    out = np.zeros((batch, length, heads, v.shape[-1]))
    for b, t, h in np.ndindex(batch, length, heads):
        head = h // (heads // kv_heads)
        seen = [s for s in range(keys) if allowed(b, t, s)]
        scores = np.array([scale * q[b, t, h] @ k[b, s, head] for s in seen])
        if logit_cap is not None:
            scores = logit_cap * np.tanh(scores / logit_cap)
        if bias is not None:
            full = np.broadcast_to(np.asarray(bias, np.float64), (batch, heads, length, keys))
            scores = scores + np.array([full[b, h, t, s] for s in seen])
        weights = np.exp(scores)
        total = weights.sum() + (0 if sinks is None else np.exp(np.float64(sinks[h])))
        for weight, s in zip(weights, seen, strict=True):
            out[b, t, h] += weight / total * v[b, s, head]
    return out
