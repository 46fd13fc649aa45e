"""The step benchmark's models and loop (benchmarks/gpu/) do the same work as their twins in Python: on the CPU, in small
sizes, they lose the same, to the last digit that is written.

usage: gpu_step_test.py PROGRAM      (PROGRAM is the built gpu_step)
"""

import pathlib
import sys
import unittest

try:
    import torch  # noqa: F401  (the twin's)
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "benchmarks"))
import gpu_step  # noqa: E402

PROGRAM = None


class Twins(unittest.TestCase):
    def test_lose_the_same(self):
        for job in ("tiny-mlp", "tiny-resnet", "tiny-gpt"):
            for precision, world_size in (("fp32", 2), ("bf16", 1)):
                with self.subTest(f"{job} {precision}"):
                    row = gpu_step.measure(PROGRAM, job, precision, "cpu", world_size, pairs=1)
                    for losses in (row["first_losses"], row["last_losses"]):
                        self.assertEqual(losses["lockstep"], losses["python"])
                        self.assertEqual(losses["lockstep"], losses["observed"])
                    self.assertLess(row["last_losses"]["lockstep"], row["first_losses"]["lockstep"])

    def test_the_large_ones_have_the_sizes_they_are_named_for(self):
        sys.path.insert(0, str(pathlib.Path(gpu_step.__file__).parent / "gpu"))
        import jobs
        import step_rank

        def parameters(name):
            job = jobs.JOBS[name]
            with torch.device("meta"):
                return sum(each.numel() for each in step_rank.made(job["model"], job["sizes"], job["classes"]).parameters())

        self.assertEqual(parameters("resnet50"), 25_557_032)
        self.assertEqual(parameters("gpt2-124m"), 124_439_808)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main(verbosity=2)
