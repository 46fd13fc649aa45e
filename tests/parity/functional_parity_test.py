"""Collectives with a gradient against torch.distributed.nn.functional's: losses and gradients of 20 steps,
bit for bit, on 2, 3 and 4 ranks.

usage: functional_parity_test.py PROGRAM      (PROGRAM is the built functional_parity)
"""

import os
import sys
import tempfile
import unittest

import ranks

PROGRAM = None  # set by ranks.main
WORLDS = (2, 3, 4)
STEPS = 20
DEADLINE_S = 90


class FunctionalParity(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="lockstep-functional-")
        cls.addClassCleanup(cls.folder.cleanup)
        script = os.path.join(ranks.HERE, "functional_parity.py")
        commands = {"cpp": [PROGRAM], "python": [sys.executable, script]}
        for language, command in commands.items():
            out = os.path.join(cls.folder.name, language)
            stores = os.path.join(cls.folder.name, "stores_" + language)
            os.mkdir(out)
            os.mkdir(stores)
            with ranks.Ranks(DEADLINE_S / 2) as group:
                for rank in range(max(WORLDS)):
                    group.start([*command, out, f"file://{stores}/w", str(rank), *map(str, WORLDS)])
                group.wait()

    def test_losses_and_gradients(self):
        numbers = 0
        for world in WORLDS:
            for rank in range(world):
                paths = [os.path.join(self.folder.name, language, f"w{world}_r{rank}")
                         for language in ("cpp", "python")]
                numbers += ranks.compare(self, *paths, steps=STEPS)
        self.assertEqual(numbers, sum(WORLDS) * STEPS * (1 + 2 * 35))
        print(f"{numbers} numbers equal ... ", end="", flush=True)


if __name__ == "__main__":
    ranks.main()
