"""What a program here has beside itself: which fault is switched on, and the figures that its oracle judges.

TWIN_FAULT is the slug of the fault, TWIN_NOTES a folder. Without them a program is right, and notes nothing. An
exercise is checked on other settings: TWIN_RANKS is the number of ranks, else 2; TWIN_SEED is added to every seed.
"""

import json
import os
import pathlib

WORLD = int(os.environ.get("TWIN_RANKS", "2"))


def fault(slug):
    return os.environ.get("TWIN_FAULT") == slug


def note(**figures):
    """This rank's figures, at the end of its program: a rank that has none did not get there."""
    if folder := os.environ.get("TWIN_NOTES"):
        pathlib.Path(folder, f"{os.environ['RANK']}.json").write_text(json.dumps(figures))


def add_to_seeds(number):
    """From now on every seed that this process gives to torch or NumPy is another one, by so much."""
    import numpy
    import torch
    seed_all, new_random = torch.manual_seed, numpy.random.default_rng

    class Generator(torch.Generator):
        def manual_seed(self, seed):
            return super().manual_seed(seed + number)

    def manual_seed(seed):
        return seed_all(seed + number)

    def default_rng(seed=None):
        return new_random(seed if seed is None else seed + number)

    torch.Generator, torch.manual_seed, numpy.random.default_rng = Generator, manual_seed, default_rng


if "TWIN_SEED" in os.environ:
    add_to_seeds(int(os.environ["TWIN_SEED"]))
