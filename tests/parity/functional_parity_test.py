"""Collectives with a gradient against torch.distributed.nn.functional's: losses and gradients of 20 steps,
bit for bit, on 2, 3 and 4 ranks.

usage: functional_parity_test.py PROGRAM      (PROGRAM is the built functional_parity)
"""

import os
import unittest

import ranks

PROGRAM = None  # set by ranks.main
WORLDS = (2, 3, 4)
STEPS = 20
DEADLINE_S = 90


class FunctionalParity(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = ranks.run_both(cls, "lockstep-functional-", PROGRAM, "functional_parity.py", "w",
                                    [str(world) for world in WORLDS], max(WORLDS), DEADLINE_S / 2)

    def test_losses_and_gradients(self):
        numbers = 0
        for world in WORLDS:
            for rank in range(world):
                paths = [os.path.join(self.folder, language, f"w{world}_r{rank}")
                         for language in ("cpp", "python")]
                numbers += ranks.compare(self, *paths, steps=STEPS)
        self.assertEqual(numbers, sum(WORLDS) * STEPS * (1 + 2 * 35))
        print(f"{numbers} numbers equal ... ", end="", flush=True)


if __name__ == "__main__":
    ranks.main()
