"""Jobs under torchrun as a user starts them, with `lockstep watch --` in front: what is said, and that nothing changes.

usage: python3 watch_test.py PACKAGE [--all]      the folder that holds lockstep_torch, for PYTHONPATH
"""

import functools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest

from package import ALL, FOLDER, LOCKSTEP, environment, full_tier, run

sys.path.insert(0, str(FOLDER))

from lockstep_torch import processes

HERE = pathlib.Path(__file__).resolve().parent
DEADLINE_S = 150  # a loaded machine takes most of it to start
NEAR_MISSES = ("near-miss-own-hooks", "near-miss-validation-inside", "near-miss-stream")
FAULTS = (("no-set-epoch", "in enumerate(loader)", ("missing-set-epoch", [0, 1], 7)),
          ("inner-forward", "torch.autograd.backward(", ("forward-bypasses-wrapper", [0, 1], 0)),
          ("another-dropout", "", ("configuration-differs", [0, 1], 0)),
          ("no-sampler", "in enumerate(loader)", ("no-sharding", [0, 1], 0)),
          ("own-split", "in enumerate(loader)", ("dataset-unseeded", [0, 1], -1)),
          ("whole-stream", "in enumerate(loader)", ("stream-not-sharded", [0, 1], 0)),
          ("another-rate", "optimizer.step()", ("update-differs", [0, 1], 0)),
          ("another-autocast", "", ("configuration-differs", [0, 1], 0)))
NOT_UTF_8 = "no\udce9"


def torchrun(*arguments, ranks=2, program=HERE / "job.py", restarts=0):
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks),
            "--max-restarts", str(restarts), str(program), *arguments]


def started(*arguments, ranks=2):
    return [sys.executable, HERE / "start.py", str(ranks), HERE / "job.py", *arguments]


LAUNCHERS = (started, torchrun) if ALL else (started,)


class Watch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.traces = self.folder / "traces"

    def call(self, command, **environment):
        return run(command, DEADLINE_S, **environment)

    def watch(self, *arguments, options=(), start=started, **environment):
        return self.call([*LOCKSTEP, "watch", "--into", self.traces, *options, "--", *start(*arguments)], **environment)

    def start_two(self, *commands):
        """Without a launcher."""
        recorded = environment(LOCKSTEP_TRACE=str(self.traces))
        jobs = [subprocess.Popen([sys.executable, *command], env=recorded) for command in commands]
        self.assertEqual([job.wait(DEADLINE_S) for job in jobs], [0, 0])

    def findings(self):
        done = self.call([*LOCKSTEP, "diagnose", "--json", self.traces])
        self.assertIn(done.returncode, (0, 1), done.stderr)
        return [(one["pitfall"], one["ranks"], one["step"]) for one in json.loads(done.stdout)["findings"]
                if one["severity"] == "violation"]

    def names(self):
        return sorted(file.name for file in self.traces.glob("*.trace"))

    def lines(self, words):
        """What the program has in the lines that the only violation names."""
        findings = json.loads(self.call([*LOCKSTEP, "diagnose", "--json", self.traces]).stdout)["findings"]
        [found] = [one for one in findings if one["severity"] == "violation"]
        self.assertEqual({place["file"] for place in found["places"]}, {str(HERE / "job.py")})
        source = (HERE / "job.py").read_text().splitlines()
        for place in found["places"]:
            self.assertIn(place["source"], source[place["line"] - 1])
            if place["ranks"] == found["ranks"]:
                self.assertIn(words, place["source"])

    def finals(self, done):
        found = sorted(re.findall(r"rank \d+: \S+", done.stdout))
        self.assertEqual(len(found), 2, done.stdout + done.stderr)
        return found

    def test_a_right_job_is_right_and_unchanged_to_the_bit(self):
        plain = self.call(started())
        watched = self.watch(start=torchrun)
        self.assertEqual(watched.returncode, 0, watched.stderr)
        self.assertEqual(self.finals(watched), self.finals(plain))
        self.assertEqual(self.findings(), [])
        self.assertIn("  held    replicas are equal after the update", watched.stderr)
        self.assertNotIn("BROKEN", watched.stderr)
        self.assertEqual(self.names(), ["rank_0.trace", "rank_1.trace"])  # and nobody had to say how they ended
        self.assertEqual([processes.head(file).closed for file in processes.traces(self.traces)], [1, 1])
        pids = {processes.head(file).pid for file in processes.traces(self.traces)}
        self.assertEqual(len(pids), 2)
        self.assertIsNone(processes.progress(self.traces, pids), "ranks that have ended make no stall")
        self.assertIsNotNone(processes.progress(self.traces, set()), "they may live on another machine")

    @full_tier
    def test_right_jobs_that_look_wrong(self):
        for job in NEAR_MISSES:
            with self.subTest(job):
                self.traces = self.folder / job
                watched = self.watch(job)
                self.assertEqual(self.finals(watched), self.finals(self.call(started(job))))
                self.assertEqual(self.findings(), [])
                self.assertEqual(self.names(), ["rank_0.trace", "rank_1.trace"])

    def test_wrapped_functions_can_be_pickled(self):
        code = "import torch, pickle; print(pickle.loads(pickle.dumps(torch.load)) is torch.load)"
        done = self.call([sys.executable, "-c", code], LOCKSTEP_TRACE=str(self.traces))
        self.assertEqual(done.stdout.strip(), "True", done.stderr)

    def test_faults_are_named(self):
        for fault, words, *expected in FAULTS if ALL else FAULTS[:1]:
            with self.subTest(fault):
                self.traces = self.folder / fault
                done = self.watch(fault, options=("--fail-on-finding",))
                self.assertEqual(self.findings(), expected)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn(expected[0][0], done.stderr)
                if words:
                    self.lines(words)
                    self.assertRegex(done.stderr, r"job\.py:\d+: .*" + re.escape(words))

    @full_tier
    def test_another_batch_size_is_advice_with_its_values(self):
        done = self.watch("another-batch-size", options=("--fail-on-finding",))
        self.assertEqual((done.returncode, self.findings()), (0, []), done.stderr)
        self.assertIn("advice: configuration-differs ranks 0 and 1, step 0 batch_size of the loader of 200 samples is "
                      "16 on rank 0 and 15 on rank 1", " ".join(done.stderr.split()))

    @full_tier
    def test_a_rank_that_raises_is_named_and_the_job_s_exit_code_is_kept(self):
        for start in LAUNCHERS:
            with self.subTest(start.__name__):
                self.traces = self.folder / start.__name__
                done = self.watch("one-rank-raises", start=start)
                self.assertEqual(done.returncode, 1)
                self.assertIn("a batch of this rank is broken", done.stderr)
                self.assertEqual([(slug, ranks) for slug, ranks, _ in self.findings()], [("one-rank-raises", [1])])
                self.lines('raise ValueError("a batch of this rank is broken")')
                self.assertRegex(done.stderr, r"job\.py:\d+: raise .*\n +ValueError: a batch of this rank is broken\n")

    @full_tier
    def test_a_rank_that_is_killed_is_named(self):
        for start in LAUNCHERS:
            with self.subTest(start.__name__):
                self.traces = self.folder / start.__name__
                done = self.watch("one-rank-dies", start=start)
                self.assertEqual([(pitfall, ranks) for pitfall, ranks, _ in self.findings()], [("peer-dies", [1])])
                self.assertIn("is gone without a word", " ".join(done.stderr.split()))

    @full_tier
    def test_ranks_that_are_ended_by_a_signal_to_the_job_have_not_died(self):
        code = f"""if True:
            import signal, sys
            from lockstep_torch import command_line, processes
            look, begun = processes.Ends.look, []
            def look_and_end(ends, seconds=0):
                look(ends, seconds)
                if not begun and len(ends.files) == 2 and processes.progress(ends.folder, set()):
                    begun.append(True)
                    signal.raise_signal(signal.SIGTERM)
            processes.Ends.look = look_and_end
            sys.exit(command_line.main(["watch", "--into", {str(self.traces)!r}, "--",
                                        *{[str(part) for part in torchrun("one-rank-receives")]!r}]))"""
        done = self.call([sys.executable, "-c", code])
        self.assertNotIn("peer-dies", done.stderr)
        self.assertNotIn("one-rank-raises", done.stderr)
        self.assertEqual(len(list(self.traces.glob("rank_*.trace"))), 2, done.stderr)

    @full_tier
    def test_a_signal_after_which_the_job_goes_on_has_not_ended_it(self):
        code = ("import os, runpy, signal, sys; signal.signal(signal.SIGHUP, lambda *_: print('HUP')); "
                "os.kill(os.getppid(), signal.SIGHUP); del sys.argv[0]; "
                "runpy.run_path(sys.argv[0], run_name='__main__')")
        for fault, named in (("", []), ("one-rank-raises", [("one-rank-raises", [1])])):
            with self.subTest(fault):
                self.traces = self.folder / f"of {fault}"
                done = self.watch(fault, start=lambda *a: [sys.executable, "-c", code, *started(*a)[1:]])
                self.assertIn("HUP", done.stdout)
                self.assertEqual([(slug, ranks) for slug, ranks, _ in self.findings()], named)
                self.assertNotIn("ended by a signal", done.stderr)

    def test_a_hang_is_ended_and_named(self):
        done = self.watch("one-rank-receives", options=("--timeout", "6"), start=LAUNCHERS[-1])
        self.assertEqual(done.returncode, 124, done.stderr)
        self.assertIn("no rank made progress for 6 s", done.stderr)
        self.assertEqual([(pitfall, ranks) for pitfall, ranks, _ in self.findings()], [("no-progress", [1])])
        self.lines("dist.recv(")

    @full_tier
    def test_a_job_that_was_started_again_has_its_last_attempt_s_lines(self):
        # Or else torch 2.11 has a second attempt meet in what the first has left in the store.
        done = self.watch("raises-at-first", start=functools.partial(torchrun, restarts=1),
                          TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([(pitfall, ranks) for pitfall, ranks, _ in self.findings()], [("missing-set-epoch", [0, 1])])
        self.lines("in enumerate(loader)")

    @full_tier
    def test_a_page_of_the_job_names_its_lines_and_says_what_the_pitfall_is(self):
        self.watch("no-set-epoch")
        page, traces = self.folder / "a page.html", sorted(self.traces.iterdir())
        done = self.call([*LOCKSTEP, "report", self.traces, "--out", page])
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual((page.stat().st_mode & 0o777, sorted(self.traces.iterdir())), (0o600, traces))
        text = page.read_text(encoding="utf-8")
        self.assertRegex(text, r"job\.py:\d+: .*in enumerate\(loader\)")
        for part in ("Symptom", "Why", "Fix"):
            self.assertIn(f"<h3>{part}</h3>", text)

    @full_tier
    def test_a_page_of_a_generic_finding_says_what_is_near_and_whether_it_was_looked_for(self):
        self.watch("another-rate")
        page = self.folder / "page.html"
        done = self.call([*LOCKSTEP, "report", self.traces, "--out", page])
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        text = page.read_text(encoding="utf-8")
        self.assertRegex(text, r"<code>local-overflow-skip</code>: .* \(not looked for: no `scaled_step` was ")
        self.assertRegex(text, r"<code>[a-z-]*</code>: .* \(no sign of it\)")

    def test_a_folder_of_somebody_else_s_is_only_read(self):
        """It has a link to a file of the user's, fifos, a folder, and stacks, which `watch` reads of its own job."""
        self.watch()
        mine = self.folder / "mine"
        mine.write_text("mine\n")
        (self.traces / "places_0.jsonl").unlink()
        (self.traces / "places_0.jsonl").symlink_to(mine)
        (self.traces / "places_1.jsonl").unlink()
        os.mkfifo(self.traces / "places_1.jsonl")
        (self.traces / "stack_0_1.txt").write_text(f'  File "{mine}", line 1 in f\n  File "a\0", line 1 in f\n')
        (self.traces / "stack_1_1.txt").mkdir()
        os.mkfifo(self.traces / "stack_1_2.txt")
        before = self.state_of(self.folder)
        done = self.call([*LOCKSTEP, "diagnose", self.traces])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        self.assertEqual(self.state_of(self.folder), before)

    def state_of(self, folder):
        return [(str(file), file.lstat().st_mtime_ns, file.lstat().st_size) for file in sorted(folder.rglob("*"))]

    def test_a_page_says_what_it_needs(self):
        code = ("import sys; sys.modules['vl_convert'] = None; from lockstep_torch import command_line; "
                "sys.exit(command_line.main(['report', 'nowhere']))")
        done = self.call([sys.executable, "-c", code])
        self.assertEqual(done.returncode, 3)
        self.assertIn("pip install jinja2 vl-convert-python", done.stderr)

    @full_tier
    def test_lines_that_are_damaged_are_said_and_hide_nothing(self):
        self.watch("no-set-epoch")
        file = self.traces / "places_1.jsonl"
        file.write_text('{"kind": "pass"\n' + file.read_text())
        for options in ((), ("--json",)):
            done = self.call([*LOCKSTEP, "diagnose", *options, self.traces])
            self.assertEqual(done.returncode, 1)
            self.assertIn(f"{file}:1 is left out", done.stderr)
            self.assertIn("missing-set-epoch", done.stdout)
            self.assertIn("in enumerate(loader)", done.stdout)

    @full_tier
    def test_a_variable_records_a_job_whose_command_line_is_not_one_s_own(self):
        done = self.call(started("no-set-epoch"), LOCKSTEP_TRACE=str(self.traces))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.findings(), [("missing-set-epoch", [0, 1], 7)])

    @full_tier
    def test_processes_without_a_launcher_are_each_alone(self):
        script = self.folder / "alone.py"
        script.write_text(HERE.joinpath("alone.py").read_text())
        began = self.folder / "began"
        began.mkdir()
        self.start_two([script, began, "2"], [script, began, "2"])
        self.assertEqual(self.findings(), [("silent-single-process", [0], 0)])

    @full_tier
    def test_what_was_done_before_the_group_is_no_finding(self):
        self.start_two([HERE / "late.py", self.folder, "0"], [HERE / "late.py", self.folder, "1"])
        self.assertEqual(self.findings(), [])
        self.assertEqual(self.names(), ["rank_0.trace", "rank_1.trace"])

    @full_tier
    def test_a_compiled_model_has_no_more_graph_breaks(self):
        plain, recorded = (self.call([sys.executable, HERE / "compiled.py"], **variables)
                           for variables in ({}, {"LOCKSTEP_TRACE": str(self.traces)}))
        self.assertEqual(recorded.returncode, 0, recorded.stderr)
        figures = [re.fullmatch(r"(loss .*, graphs [1-9]\d*), breaks (\d+)\n", done.stdout)
                   for done in (plain, recorded)]
        self.assertEqual(figures[0][1], figures[1][1])
        self.assertLessEqual(int(figures[1][2]), int(figures[0][2]))
        self.assertEqual(self.findings(), [])

    def test_a_signal_that_comes_while_the_job_starts_is_the_job_s(self):
        code = """if True:
            import os, signal, subprocess, sys
            from lockstep_torch import command_line
            class Started(subprocess.Popen):
                def __init__(self, *arguments, **options):
                    super().__init__(*arguments, **options)
                    os.kill(os.getpid(), signal.SIGTERM)
            subprocess.Popen = Started
            sys.exit(command_line.main(["watch", "--", "sleep", "60"]))"""
        done = self.call([sys.executable, "-c", code], TMPDIR=str(self.folder))
        self.assertEqual(done.returncode, 128 + signal.SIGTERM, done.stderr)

    def test_nothing_is_recorded_that_was_not_asked_for(self):
        done = self.call([sys.executable, "-c", "import torch, sys; print('lockstep_torch.hooks' in sys.modules)"])
        self.assertEqual(done.stdout.strip(), "False")

    @full_tier
    def test_another_torch_s_extension_is_not_loaded_and_the_job_goes_on(self):
        package = self.folder / "lockstep_torch"
        package.mkdir()
        for file in (FOLDER / "lockstep_torch").iterdir():
            if file.name != "__pycache__":
                (package / file.name).symlink_to(file.resolve())
        (package / "built_for.py").unlink()
        (package / "built_for.py").write_text('TORCH_VERSION = "1.2.3"\n')
        (self.folder / "lockstep_torch-0.1.0.dist-info").symlink_to(FOLDER / "lockstep_torch-0.1.0.dist-info")
        for start in (started, torchrun):
            with self.subTest(start.__name__):
                done = self.call(start(), LOCKSTEP_TRACE=str(self.traces), PYTHONPATH=str(self.folder))
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(done.stderr.count("was built for torch 1.2.3, and this is torch 2."), 1, done.stderr)
                self.assertIn("pip install", done.stderr)

    def test_usage(self):
        for arguments, said in ((["watch", "--", "/no/such/program"], "cannot start /no/such/program"),
                                (["watch", "--", ""], "cannot start"),
                                (["watch", "--intoo", "x", "--", "ls"], "no option --intoo; the nearest: --into; see"),
                                (["watch", "ls", "--epochs", "3"], "put -- before the command: watch -- ls"),
                                (["watch", "--into", "x"], "required: COMMAND; see lockstep watch --help"),
                                (["diagnose", "--jsn", self.folder], "no option --jsn; the nearest: --json;"),
                                (["diagnose", self.folder, "more"], "not expected: more; see lockstep diagnose --help"),
                                (["diagnose", self.folder / "none"], "there is no folder"),
                                (["explain", "zzz"], "no finding is called zzz; lockstep explain, without a name,"),
                                (["explain", "set-epoch"], "no finding is called set-epoch; the nearest: "),
                                (["report", self.folder / "none"], "there is no folder"),
                                (["diagnose", self.folder / NOT_UTF_8], "there is no folder"),
                                (["compare", self.folder / NOT_UTF_8, self.folder], "there is no folder"),
                                (["report", self.folder / NOT_UTF_8], "there is no folder")):
            done = self.call([*LOCKSTEP, *arguments])
            self.assertEqual(done.returncode, 2)
            self.assertIn(said, done.stderr)
            self.assertNotIn("Traceback", done.stderr)

    def test_an_answer_that_nobody_can_read_is_a_failure(self):
        done = self.call(["sh", "-c", '"$@" >&-', "sh", *LOCKSTEP, "explain"])
        self.assertEqual((done.returncode, done.stderr), (3, "lockstep: standard output is closed\n"))

    def test_what_a_finding_means(self):
        pitfall = self.call([*LOCKSTEP, "explain", "missing-set-epoch"])
        self.assertRegex(pitfall.stdout, r"(?s)^missing-set-epoch: every .*\n\n## Symptom\n.*## Why\n.*\n\n## Fix\nIn ")
        self.assertNotIn("## The code", pitfall.stdout)
        generic = self.call([*LOCKSTEP, "explain", "replicas-diverged"])
        self.assertRegex(generic.stdout, r"(?s)^A generic finding: replicas-diverged\n.*: the ranks' parameters are .*"
                         r"## Nearest.*\n- no-initial-broadcast: parameters differ before the first update\n")
        self.assertEqual((pitfall.returncode, generic.returncode), (0, 0), pitfall.stderr + generic.stderr)

    def test_a_dry_run_refuses_and_runs_nothing(self):
        (self.folder / "rank_0.trace").touch()
        for arguments, code, said in ((["--", "echo", "ran"], 0, ""),
                                      (["--to", "3", "--", "ls"], 2, "there is no --every"),
                                      (["--into", self.folder, "--", "ls"], 2, "holds a run already"),
                                      (["--into", self.folder.parent, "--", "ls"], 0, ""),  # it holds a folder of a run
                                      (["--into", "", "--", "ls"], 2, "--into wants the name of a folder"),
                                      (["--into", __file__, "--", "ls"], 2, "cannot be used: File exists"),
                                      (["--timeout", "0", "--", "ls"], 2, "seconds above 0 is wanted, not '0'")):
            done = self.call([*LOCKSTEP, "watch", "--dry-run", *arguments], TMPDIR=str(self.folder))
            self.assertEqual((done.returncode, done.stdout), (code, ""), done.stderr)
            self.assertIn(said, done.stderr)
        self.call([*LOCKSTEP, "watch", "--dry-run", "--into", self.folder / "a/new one", "--", "ls"])
        self.assertEqual(list(self.folder.glob("lockstep-*")) + list(self.folder.glob("a*")), [])

    def test_a_command_that_cannot_be_started_leaves_no_folder(self):
        self.call([*LOCKSTEP, "watch", "--", "/no/such/program"], TMPDIR=str(self.folder))
        self.assertEqual(list(self.folder.glob("lockstep-*")), [])

    def test_a_command_that_fails_unrecorded_is_told_as_failed(self):
        done = self.call([*LOCKSTEP, "watch", "--", "false"])
        self.assertEqual(done.returncode, 1)
        self.assertIn("false exited with 1; nothing was recorded", done.stderr)


if __name__ == "__main__":
    unittest.main()
