"""`lockstep prove`: what it says of proved.py's ways, what it leaves alone, and what it refuses.

usage: python3 prove_test.py PACKAGE [-v] [Prove.test_NAME ...]      the folder that holds lockstep_torch
"""

import contextlib
import json
import os
import pathlib
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

import jsonschema
import torch
from package import FOLDER, LOCKSTEP, environment, full_tier, run

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/support"))
import nothing_left

HERE = pathlib.Path(__file__).resolve().parent
SCHEMA = json.loads((HERE.parents[1] / "reports" / "schema" / "prove.schema.json").read_text())
DEADLINE_S = 240
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]


class Prove(nothing_left.TestCase):
    def setUp(self):
        super().setUp()
        cache = tempfile.TemporaryDirectory(prefix="lockstep test ")  # torch's own, which it leaves
        self.addCleanup(cache.cleanup)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache.name
        folder = tempfile.TemporaryDirectory(prefix="lockstep test ")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        shutil.copy(HERE / "proved.py", self.folder)

    def prove(self, *arguments, options=(), launcher=TORCHRUN):
        return run([*LOCKSTEP, "prove", *options, "--", *launcher, *arguments], DEADLINE_S, folder=self.folder)

    def proved(self, way, *relations, code, options=(), launcher=TORCHRUN, program="proved.py"):
        """What is said of each of the relations."""
        done = self.prove(program, way, options=["--json", "--relations", ",".join(relations), *options],
                          launcher=launcher)
        self.assertNotIn("Traceback", done.stderr)
        self.assertEqual(done.returncode, code, done.stderr + done.stdout)
        self.assertEqual([file.name for file in self.folder.iterdir()], ["proved.py"])
        jsonschema.validate(json.loads(done.stdout), SCHEMA)
        self.noise = json.loads(done.stdout)["noise"]
        found = json.loads(done.stdout)["relations"]
        self.assertEqual([one["relation"] for one in found], list(relations))
        return found[0] if len(found) == 1 else found

    def assert_factor(self, answer, factor, pitfall):
        self.assertEqual(answer["standing"], "fails")
        self.assertAlmostEqual(answer["factor"], factor, 4)
        self.assertEqual((answer["ranks"], answer["pitfalls"]), ([0, 1], [pitfall]))

    def test_a_right_job_holds(self):
        slope, one, swap = self.proved("right", "slope", "one", "swap", code=0)
        self.assertEqual((slope["standing"], slope["looked_at"]), ("held", 3))
        self.assertEqual((one["standing"], one["looked_at"]), ("held", 12))
        self.assertEqual((swap["standing"], swap["looked_at"]), ("held", 12))
        self.assertIn("BATCH 6 -> 12", one["says"])
        self.assertEqual(one["neutral"], ["dropout drops nothing"])

    @full_tier
    def test_gradients_averaged_by_hand_hold(self):
        slope, one = self.proved("by-hand", "slope", "one", code=0)
        self.assertEqual((slope["standing"], one["standing"]), ("held", "held"))

    def test_a_sum_is_as_many_times_too_long_as_there_are_ranks(self):
        slope, one = self.proved("sum", "slope", "one", code=1)
        self.assert_factor(slope, 2, "sum-not-mean")
        self.assert_factor(one, 2, "sum-not-mean")
        self.assertEqual((slope["step"], one["step"]), (1, 0))

    @full_tier
    def test_a_mean_taken_twice_is_half_as_long(self):
        slope, one = self.proved("twice", "slope", "one", code=1)
        self.assert_factor(slope, 0.5, "double-average")
        self.assert_factor(one, 0.5, "double-average")

    @full_tier
    def test_a_loss_that_is_divided_before_its_gradients_are_summed_is_right(self):
        slope, one = self.proved("divided", "slope", "one", code=0)
        self.assertEqual((slope["standing"], one["standing"]), ("held", "held"))
        self.assertIn("times 2, the number of ranks", slope["says"])
        self.assertEqual(self.proved("divided", "slope", code=3)["standing"], "cannot be told")

    def test_a_bypassed_wrapper_leaves_each_rank_its_own_gradient(self):
        answer = self.proved("bypasses", "slope", code=1)
        self.assertEqual((answer["standing"], answer["ranks"]), ("fails", [0, 1]))
        self.assertIn("each by that of its own loss", answer["says"])
        self.assertIn("forward-bypasses-wrapper", answer["pitfalls"])

    @full_tier
    def test_gradients_that_each_rank_clips_are_no_mean(self):
        answer = self.proved("clips-first", "slope", code=1)
        self.assertEqual((answer["standing"], answer["pitfalls"]), ("fails", ["clip-before-reduction"]))

    @full_tier
    def test_weights_by_a_ranks_own_counts_are_not_those_of_one_process(self):
        slope, one = self.proved("kinds-weigh", "slope", "one", code=1)
        self.assertEqual((slope["standing"], one["standing"], one["step"]), ("held", "fails", 0))
        self.assertIn("mean-of-local-means", one["pitfalls"])

    def test_what_a_rank_does_to_its_batch_must_not_depend_on_it(self):
        answer = self.proved("rank-weighs", "swap", code=1)
        self.assertEqual((answer["standing"], answer["step"], answer["ranks"]), ("fails", 0, [0, 1]))
        self.assertIn("the loss of rank 0's batch is", answer["says"])
        self.assertEqual(answer["pitfalls"], ["loss-weight-differs"])

    @full_tier
    def test_ranks_that_change_their_batches_in_other_ways(self):
        answer = self.proved("rank-turns", "swap", code=1)
        self.assertEqual((answer["standing"], answer["step"]), ("fails", 0))
        self.assertIn("makes other rows", answer["says"])
        for way in ("counts-weigh", "noise-for-two"):
            with self.subTest(way):
                one, swap = self.proved(way, "one", "swap", code=0)
                self.assertEqual((one["standing"], swap["standing"], swap["looked_at"]), ("held", "held", 12))

    @full_tier
    def test_what_ranks_draw_by_generators_of_their_own_is_no_fault(self):
        for way in ("own-noise", "own-weight"):
            with self.subTest(way):
                one, swap = self.proved(way, "one", "swap", code=3)
                self.assertEqual((one["standing"], swap["standing"]), ("cannot be told", "cannot be told"))
                self.assertIn("numpy.random.default_rng", swap["says"])

    @full_tier
    def test_what_is_drawn_from_a_longer_batch_is_something_else(self):
        answer = self.proved("picks-a-row", "one", code=3)
        self.assertIn("but one process draws something else at proved.py:", answer["says"])

    @full_tier
    def test_ranks_that_share_out_what_they_compute_of_the_same_rows(self):
        self.assertEqual(self.proved("own-part", "one", code=0)["standing"], "held")

    @full_tier
    def test_what_is_constant_in_the_loss_is_constant_in_its_slope(self):
        self.assertEqual(self.proved("straight-through", "slope", code=0)["standing"], "held")
        self.assertEqual(self.proved("own-target", "slope", code=0)["standing"], "held")
        self.assertEqual(self.proved("checkpoints", "slope", code=0)["standing"], "held")

    @full_tier
    def test_a_backward_of_the_programs_own_is_not_judged(self):
        answer = self.proved("own-backward", "slope", code=3)
        self.assertEqual(answer["standing"], "cannot be told")
        self.assertIn("the backward of Rounds", answer["says"])

    @full_tier
    def test_a_job_that_never_does_the_same_is_not_judged(self):
        for answer in self.proved("unseeded", "slope", "one", "swap", code=3):
            self.assertIn("does not do the same twice: on rank 0 the loss before update 0 is", answer["says"])
        self.assertGreater(self.noise, 1e-2)

    @full_tier
    def test_a_job_of_32_bits_is_proved_in_its_own_precision(self):
        for answer in self.proved("narrow", "slope", "one", "swap", code=0):
            self.assertEqual(answer["standing"], "held", answer["says"])
        slope, one = self.proved("narrow-sum", "slope", "one", code=1)
        for answer in (slope, one):
            self.assertEqual((answer["standing"], answer["pitfalls"]), ("fails", ["sum-not-mean"]))
        slope, one = self.proved("narrow-kinds-weigh", "slope", "one", code=1)
        self.assertEqual((slope["standing"], one["standing"]), ("held", "fails"))

    @full_tier
    @unittest.skipUnless(torch.cuda.is_available(), "no GPU")
    def test_a_job_on_a_gpu(self):
        for answer in self.proved("on-a-gpu", "slope", "one", "swap", code=0, options=["--device", "cuda"]):
            self.assertEqual(answer["standing"], "held")

    @full_tier
    def test_an_error_below_the_programs_own_noise_is_no_fault(self):
        for answer in self.proved("jitters", "slope", "one", "swap", code=0):
            self.assertEqual(answer["standing"], "held", answer["says"])
        self.assertTrue(1e-7 < self.noise < 1e-5, self.noise)
        for answer in self.proved("right", "slope", "one", code=0):
            self.assertEqual((answer["standing"], self.noise), ("held", 0))

    @full_tier
    def test_a_resumed_job_goes_on_or_what_it_lost_is_named(self):
        held = self.proved("resume", "restart", code=0)
        self.assertEqual(held["standing"], "held")
        lost = self.proved("resume-without-optimizer", "restart", code=1)
        self.assertEqual((lost["standing"], lost["step"]), ("fails", 8))  # a pass has 8 updates
        self.assertIn("optimizer-state-missing", lost["pitfalls"])
        rate = self.proved("resume-at-another-rate", "restart", code=1)
        self.assertEqual((rate["standing"], rate["step"]), ("fails", 8))
        self.assertIn("another lr of the optimizer's group 0: 0.01 before, 0.02 now", rate["says"])
        order = self.proved("resume-unseeded", "restart", code=0)
        self.assertIn("the order of its samples, which each start draws anew: it does not seed torch", order["says"])
        forgets = self.proved("resume-forgets", "restart", code=1)
        self.assertIn("with something else that the loss goes by", forgets["says"])
        self.assertEqual(self.proved("stages", "restart", code=0)["standing"], "held")
        names = self.proved("resume-other-names", "restart", code=1)
        self.assertEqual((names["standing"], names["pitfalls"]), ("fails", ["module-prefix"]))

    @full_tier
    def test_a_job_that_begins_anew_cannot_be_told(self):
        self.assertIn("it saves nothing", self.proved("right", "restart", code=3)["says"])
        for way in ("saves", "saves-data"):
            self.assertIn("begins anew, and reads nothing", self.proved(way, "restart", code=3)["says"])

    def test_what_is_wrong_with_a_command_is_said(self):
        done = self.prove("proved.py", "right", options=["--relations", "swing"])
        self.assertEqual(done.returncode, 2)
        self.assertIn("no relation 'swing'; there are slope, one, swap, restart", done.stderr)
        if not torch.cuda.is_available():
            done = self.prove("proved.py", "right", options=["--device", "cuda"])
            self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1))
            self.assertIn("torch finds no GPU here", done.stderr)
        done = self.prove("missing.py")
        self.assertEqual(done.returncode, 2)
        self.assertIn("the job itself fails", done.stderr)
        self.assertNotIn("Traceback", done.stderr)

    @full_tier
    def test_where_a_job_fails_is_said(self):
        (self.folder / "raises.py").write_text("import torch\nraise ValueError('of its own')\n")
        done = self.prove("raises.py")
        self.assertEqual(done.returncode, 2)
        self.assertIn("ValueError: of its own (raises.py:2)", done.stderr)
        (self.folder / "raises.py").write_text("import sys\nimport torch\nsys.exit('no data; run prepare.py')\n")
        self.assertIn("it said last: no data; run prepare.py", self.prove("raises.py").stderr)

    @full_tier
    def test_the_users_files_stay_as_they_are(self):
        """Also where the program is named by its whole path, is a link, or has a number for its batch size."""
        source = (self.folder / "proved.py").read_text().replace("DataLoader(data, BATCH,", "DataLoader(data, 6,")
        with tempfile.TemporaryDirectory(prefix="lockstep test ") as elsewhere:
            program = pathlib.Path(elsewhere) / "real.py"
            program.write_text(source.replace("BATCH = 6", ""))
            outside = pathlib.Path(elsewhere) / "saved.pt"
            outside.write_bytes(b"the user's")
            (self.folder / "proved.py").unlink()
            (self.folder / "proved.py").symlink_to(program)
            done = self.prove(self.folder / "proved.py", "right", options=["--relations", "one"])
            self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
            self.assertNotIn("6 -> 12", done.stdout)  # a link's numbers are not changed
            self.assertEqual(program.read_text(), source.replace("BATCH = 6", ""))
            (self.folder / "proved.py").unlink()
            shutil.copy(program, self.folder / "proved.py")
            done = self.prove(self.folder / "proved.py", "right", options=["--relations", "one"])
            self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
            self.assertIn("6 -> 12", " ".join(done.stdout.split()))
            self.assertEqual((self.folder / "proved.py").read_text(), program.read_text())
            (self.folder / "saved.pt").symlink_to(outside)
            done = self.prove("proved.py", "saves", options=["--relations", "restart"])
            self.assertEqual(outside.read_bytes(), b"the user's")
            self.assertIn("saved.pt is a link that leads out of the working folder", done.stdout + done.stderr)
            (self.folder / "kept").symlink_to(elsewhere)
            for does in ("os.remove('kept/saved.pt')", "os.rename('kept/saved.pt', 'a')",
                         "os.chdir('kept')\nopen('b', 'w')"):
                (self.folder / "removes.py").write_text(f"import os\nimport torch\n{does}\n")
                self.assertIn("leads out of the working folder", self.prove("removes.py").stderr)
                self.assertEqual(sorted(os.listdir(elsewhere)), ["real.py", "saved.pt"])

    @full_tier
    def test_an_interrupted_proof_leaves_nothing(self):
        for number in (signal.SIGTERM, signal.SIGHUP):
            with self.subTest(number.name):
                self.interrupts(number)

    def interrupts(self, number):
        with tempfile.TemporaryDirectory(prefix="lockstep test ") as temporary:
            command = [*LOCKSTEP, "prove", "--", *TORCHRUN, "proved.py", "right"]
            job = subprocess.Popen(command, cwd=self.folder, env=environment(TMPDIR=temporary), text=True,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            with job:
                for line in job.stderr:
                    if " 3: " in line:  # its ranks run
                        job.send_signal(number)
                        break
                said = job.stderr.read()
                self.assertEqual(job.wait(DEADLINE_S), 130, said)
            self.assertIn("interrupted; nothing of the job is left", said)
            self.assertEqual(list(pathlib.Path(temporary).glob("lockstep-prove-*")), [])

    def proved_cpp(self, way, *relations, code):
        return self.proved(way, *relations, code=code, program=FOLDER / "proved", launcher=[*TORCHRUN, "--no-python"])

    def test_a_right_job_in_cpp_holds(self):
        slope, one = self.proved_cpp("noise", "slope", "one", code=0)
        self.assertEqual((slope["standing"], slope["looked_at"]), ("held", 3))
        self.assertLess(slope["error"], 1e-5)
        self.assertEqual((one["standing"], one["looked_at"]), ("held", 12))
        self.assertEqual(one["neutral"][:2], ["BatchNorm goes by its running statistics", "dropout drops nothing"])

    def test_gradients_summed_by_hand_in_cpp(self):
        slope, one = self.proved_cpp("sum", "slope", "one", code=1)
        self.assert_factor(slope, 2, "sum-not-mean")
        self.assert_factor(one, 2, "sum-not-mean")
        self.assertTrue(one["line"].startswith("proved.cpp:"), one)

    @full_tier
    def test_other_jobs_in_cpp(self):
        for way in ("right", "by-hand"):
            with self.subTest(way):
                slope, one = self.proved_cpp(way, "slope", "one", code=0)
                self.assertEqual((slope["standing"], one["standing"]), ("held", "held"))
        one = self.proved_cpp("kinds-weigh", "one", code=1)
        self.assertEqual(one["pitfalls"], ["mean-of-local-means", "loss-weight-differs"])
        slope = self.proved_cpp("bypasses", "slope", code=1)
        self.assertIn("each by that of its own loss", slope["says"])

    @full_tier
    def test_jobs_in_cpp_that_start_again(self):
        restart = self.proved_cpp("saves", "restart", code=0)
        self.assertEqual((restart["standing"], restart["looked_at"]), ("held", 1))
        restart = self.proved_cpp("forgets", "restart", code=1)
        self.assertEqual((restart["step"], restart["pitfalls"]), (8, ["optimizer-state-missing"]))

    @full_tier
    def test_a_job_in_cpp_that_fails(self):
        done = self.prove(FOLDER / "proved", "throws", launcher=[*TORCHRUN, "--no-python"])
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("the job itself fails: it exited with 1; it said last: error: no more points", done.stderr)

    @full_tier
    def test_a_page_and_a_bar(self):
        with tempfile.TemporaryDirectory(prefix="lockstep test ") as elsewhere:
            page, seen = pathlib.Path(elsewhere) / "page.html", b""
            terminal, its_end = pty.openpty()
            command = [*LOCKSTEP, "prove", "--relations", "slope", "--html", page, "--", *TORCHRUN, "proved.py", "sum"]
            job = subprocess.Popen(command, cwd=self.folder, env=environment(), stdout=subprocess.PIPE, stderr=its_end)
            os.close(its_end)
            with job, contextlib.suppress(OSError):  # of a terminal that nobody has any more
                while part := os.read(terminal, 4096):
                    seen += part
            os.close(terminal)
            self.assertEqual(job.returncode, 3, seen)  # no run of one process says whether it is meant
            self.assertIn(b"\r\x1b[K##.................. 2: once more", seen)
            text = " ".join(page.read_text().split())
            self.assertIn("the gradient of an update is the slope of the ranks&#39; mean loss", text)
            self.assertIn("times 2, the number of ranks", text)

    @full_tier
    def test_an_exercise_is_proved(self):
        exercise = [sys.executable, HERE.parents[1] / "lessons" / "python" / "exercise.py"]
        words = ["sum-not-mean", "--python", "--folder", self.folder]
        self.assertEqual(run([*exercise, "start", *words], DEADLINE_S).returncode, 0)
        done = run([*exercise, "prove", *words], DEADLINE_S)
        self.assertEqual(done.returncode, 1, done.stderr + done.stdout)
        self.assertEqual(done.stdout.count("what explains it: sum-not-mean"), 2)
        file = self.folder / "sum-not-mean.py"
        sys.path.insert(0, str(HERE.parents[1] / "lessons" / "python"))
        import handed_out
        file.write_text(handed_out.right("sum-not-mean"))
        done = run([*exercise, "prove", *words], DEADLINE_S)
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        self.assertEqual(done.stdout.count("  holds  "), 3)

    @full_tier
    def test_right_programs_that_look_odd(self):
        for way in ("frozen", "decays-by-hand", "clips-for-two", "one-plain-process"):
            with self.subTest(way):
                slope, one = self.proved(way, "slope", "one", code=0)
                self.assertEqual((slope["standing"], one["standing"]), ("held", "held"))

    @full_tier
    def test_ranks_that_another_launcher_starts(self):
        launcher = [sys.executable, HERE / "start.py", "2"]
        slope, one = self.proved("bypasses", "slope", "one", launcher=launcher, code=1)
        self.assertIn("each by that of its own loss", slope["says"])
        self.assertIn("starts its ranks itself", one["says"])


if __name__ == "__main__":
    unittest.main()
