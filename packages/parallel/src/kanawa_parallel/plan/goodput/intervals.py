"""How often to save, in closed form: Young 1974 and Daly 2006, for one place that checkpoints go to."""

import math


def young(cost_seconds: float, mtbf_seconds: float) -> float:
    """Returns the seconds of work between saves that lose least, to first order (Young, CACM 17:9, 1974)."""
    return math.sqrt(2.0 * cost_seconds * mtbf_seconds)


def daly(cost_seconds: float, mtbf_seconds: float) -> float:
    """Returns the same to higher order (Daly, FGCS 22:3, 2006, equation 37)."""
    if cost_seconds >= 2.0 * mtbf_seconds:
        return mtbf_seconds
    ratio = cost_seconds / (2.0 * mtbf_seconds)
    return young(cost_seconds, mtbf_seconds) * (1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0) - cost_seconds


def expected_goodput(work_seconds: float, cost_seconds: float, restart_seconds: float, mtbf_seconds: float) -> float:
    """Returns the share of time in work that counts, saving every `work_seconds` of it (Daly 2006, equation 20).

    Failures may strike while saving and while restarting, and are exponential.
    """
    segment = (work_seconds + cost_seconds) / mtbf_seconds
    wall = mtbf_seconds * math.exp(restart_seconds / mtbf_seconds) * math.expm1(segment)
    return work_seconds / wall
