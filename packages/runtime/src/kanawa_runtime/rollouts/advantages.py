"""From rewards of one prompt's rollouts to advantages: any function [groups, members] -> [groups, members] works."""

import numpy as np

#: Added to deviations, so that nearly equal rewards are not amplified.
_MIN_DEVIATION = 1e-4


def group_relative(rewards: np.ndarray) -> np.ndarray:
    """Returns (r - mean) / std within each group, population std (DeepSeekMath, arXiv:2402.03300, section 4.1.2)."""
    advantages: np.ndarray = centred(rewards) / (np.std(rewards, axis=1, keepdims=True) + _MIN_DEVIATION)
    return advantages


def centred(rewards: np.ndarray) -> np.ndarray:
    """Returns r - mean within each group: by the std, too easy and too hard prompts would weigh most (Dr. GRPO).

    arXiv:2503.20783, section 3.1.
    """
    advantages: np.ndarray = rewards - np.mean(rewards, axis=1, keepdims=True)
    return advantages
