"""Shares with their intervals, as common/lockstep/matrix/score.h has them. Standard library only."""

import math

Z = 1.959963984540054  # 97.5 % of the normal distribution


def share(successes, trials):
    """Of trials, with Wilson's 95 % interval; of none nothing is known."""
    if trials == 0:
        return {"successes": 0, "trials": 0, "value": None, "low": None, "high": None}
    p = successes / trials
    center = p + Z * Z / (2 * trials)
    spread = Z * math.sqrt(p * (1 - p) / trials + Z * Z / (4 * trials * trials))
    low, high = ((center + sign * spread) / (1 + Z * Z / trials) for sign in (-1, 1))
    return {"successes": successes, "trials": trials, "value": p, "low": 0.0 if successes == 0 else low,
            "high": 1.0 if successes == trials else high}
