"""DDP in C++ against Python's DDP on the same LibTorch: the losses of 200 steps (40 in the cases that only
cut the buckets otherwise, and in those that accumulate gradients), every parameter and every buffer, bit
for bit, and the number of collectives after each step, on 2 and 4 ranks.

usage: ddp_parity_test.py PROGRAM      (PROGRAM is the built ddp_parity)
"""

import os
import struct
import sys
import unittest

import ranks

PROGRAM = None  # set by ranks.main
CASES = {"mlp": 200, "mlp_view": 200, "conv": 200, "conv_no_buffers": 200, "unused": 200, "unused_view": 200,
         "mlp_buckets": 40, "mlp_static": 40, "conv_view": 40, "unused_buckets": 40,
         "mlp_accumulated": 40, "mlp_view_accumulated": 40, "mlp_armed": 40, "conv_accumulated": 40,
         "conv_armed": 40, "unused_accumulated": 40, "mlp_join": 40, "mlp_join_shrinking": 40, "conv_join": 40,
         "conv_join_accumulated": 40, "unused_join": 40, "mlp_bf16_hook": 40,
         "conv_bf16_hook": 40}
ALL = "--all" in sys.argv and sys.argv.pop(sys.argv.index("--all"))
ON_FOUR = CASES if ALL else ("mlp_buckets", "conv_view", "unused_buckets", "conv_accumulated", "mlp_join_shrinking")
DEADLINE_S = 300


def worlds(case):
    return (2, 4) if case in ON_FOUR else (2,)


def steps_of(case, steps, rank, world):
    """Inside Join ranks have unequal numbers of steps; ddp_parity.py has them by epoch."""
    if "join" not in case:
        return steps
    return (0 if rank + 1 == world else steps // 2 - 3 * rank) + steps // 2 - 3 * (world - 1 - rank)


class DdpParity(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # Python takes seconds to start, so each rank's process runs all cases of both world sizes.
        specs = [f"{world}:{case}" for world in (2, 4) for case in CASES if world in worlds(case)]
        cls.folder = ranks.run_both(cls, "lockstep-parity-", PROGRAM, "ddp_parity.py", "", specs, 4, DEADLINE_S / 2)

    def path(self, language, world, case, rank):
        return os.path.join(self.folder, language, f"w{world}_{case}_r{rank}")

    def collectives_a_step(self, case):
        """Counted on our side, once the buckets are settled; the cases show that Python's are as many."""
        values = dict(ranks.read_result(self.path("cpp", 2, case, 0)))["collectives"]
        counts = struct.unpack(f"<{len(values) // 4}f", values)
        steps = {later - before for before, later in zip(counts[5:-1], counts[6:-1])}
        self.assertEqual(len(steps), 1, steps)
        return steps.pop()

    def test_no_sync_saves_when_forward_is_inside(self):
        self.assertEqual(self.collectives_a_step("mlp_view_accumulated"), 1)
        self.assertEqual(self.collectives_a_step("mlp_armed"), 4)
        # Buffers are broadcast before a forward that follows a reduction, and only there.
        self.assertEqual(self.collectives_a_step("conv_armed"), 4 * self.collectives_a_step("conv_accumulated"))


def make_test(case, steps):
    def test(self):
        numbers = 0
        for world in worlds(case):
            for rank in range(world):
                numbers += ranks.compare(self, self.path("cpp", world, case, rank),
                                         self.path("python", world, case, rank),
                                         steps_of(case, steps, rank, world))
        print(f"{numbers} numbers equal ... ", end="", flush=True)

    return test


for _case, _steps in CASES.items():
    setattr(DdpParity, f"test_{_case}", make_test(_case, _steps))

if __name__ == "__main__":
    ranks.main()
