"""The random numbers of a request: a pure function of its seed and of which of its tokens they draw.

Drawn on the host, ahead of time: a generator on the device would be compiled into every program.
"""

import numpy as np

#: Numbers drawn at a time.
BLOCK = 64


def block(seed: int, index: int) -> np.ndarray:
    """Returns numbers BLOCK * index and the following, fp32 in [0, 1), by Philox (Salmon et al. 2011).

    Raw bits and not NumPy's distributions, which may change between its versions.
    """
    raw = np.random.Philox(key=np.array([seed & 2**64 - 1, index], np.uint64)).random_raw(BLOCK)
    # 24 bits are what a float32 holds below 1.
    return (raw >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
