"""lockstep-course from its command line: what it says, what it leaves, and whom it takes along when it is ended.

usage: course_test.py PROGRAM Course|More      (More: the full tier's)
"""

import json
import os
import pathlib
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

PROGRAM = None
DEADLINE_S = 60


STATE = tempfile.TemporaryDirectory(prefix="lockstep-course-test-")  # nobody's own progress


def call(*arguments):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=DEADLINE_S,
                          stdin=subprocess.DEVNULL, env={**os.environ, "XDG_STATE_HOME": STATE.name})


def flat(text):
    """Without the breaks that fill lines to 80 columns."""
    return " ".join(text.split())


def too_long(text):
    """The lines of more than 80 columns, but those of one word that is longer, such as a path. Wherever TMPDIR is."""
    text = text.replace(tempfile.gettempdir(), "/tmp")
    return [line for line in text.splitlines() if len(line) > 80 and len(line.split()) > 1]


def session_members(session):
    """The processes of a session that are no zombies."""
    members = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            members.append(int(stat.parent.name))
    return members


class Base(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-course-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def assert_usage(self, result, *texts):
        self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
        self.assertEqual(result.stderr.count("error:"), 1, result.stderr)
        for text in texts:
            self.assertIn(text, flat(result.stderr))


class Course(Base):
    def test_usage_of_the_script_fits_80_columns(self):
        script = pathlib.Path(__file__).resolve().parents[2] / "lockstep"
        result = subprocess.run([script, "--help"], capture_output=True, text=True, timeout=DEADLINE_S)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(too_long(result.stdout), [])
        for command in ("run", "list", "explain", "exercise", "diagnose", "compare", "matrix", "report", "test", "bench", "doctor"):
            self.assertIn(f"  ./lockstep {command}", result.stdout)

    def test_list_names_what_each_lesson_teaches(self):
        lines = call("list").stdout.splitlines()
        lessons = [at for at, line in enumerate(lines) if re.match(r"\d\d_\w+ ", line)]
        self.assertGreaterEqual(len(lessons), 18)
        for at in lessons:
            self.assertRegex(lines[at], r" \d+ min")
            self.assertRegex(lines[at + 1], r"^    \S.{10,}")
        self.assertTrue(all(len(line) <= 80 for line in lines), lines)
        self.assertEqual(lines[-3:-1], [f"0 of {len(lessons)} exercises done.", "Minutes: to read a lesson and mend its exercise."])

    def test_help_of_run_and_of_a_lesson(self):
        for arguments in (("run", "--help"), ("run", "-h"), ("run", "all", "--help")):
            result = call(*arguments)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("--reports", result.stdout)
        for lesson in ("05", "set_epoch", "05_set_epoch"):
            result = call("run", lesson, "--help")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("missing-set-epoch", result.stdout)

    def test_wrong_use(self):
        self.assert_usage(call("run", "no_lesson"), "no_lesson", "./lockstep list names them all")
        self.assert_usage(call("run", "99"), "there is no lesson 99; there are 01 to 18, and next to it 18_")
        self.assert_usage(call("exercise", "start", "0"), "there is no lesson 00;", "next to it 01_single_device.")
        self.assert_usage(call("run", "all", "--variant", "no-variant"), "no-variant")
        self.assert_usage(call("run", "all", "--json", "x.json"), "--json")
        self.assert_usage(call("run", "05", "--json", self.folder / "missing" / "x.json"), str(self.folder / "missing"))
        self.assert_usage(call("run", "05", "--variant", "no-variant", "--reports", self.folder), "no-variant")
        self.assert_usage(call("run", "05", "--varient", "X"), "not expected: --varient X; there are --help, --variant, ")
        self.assert_usage(call("diagnose", "--jsn", self.folder), "there is no option --jsn; the nearest: --json",
                          "./lockstep diagnose --help")
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_subcommands_are_named(self):
        theirs = "there are start, hint, check and reset."
        self.assert_usage(call("exercise"), "./lockstep exercise wants a subcommand; " + theirs)
        self.assert_usage(call("exercise", "strat", "05"), './lockstep exercise has no subcommand "strat"; ' + theirs)
        self.assert_usage(call("dance"), '"dance"; there are list, run, explain, exercise, diagnose and compare.')
        self.assert_usage(call(), "./lockstep wants a subcommand; there are list, run,")
        self.assert_usage(call("explain", "missing-set-epoch", "one", "two"), "not expected: one two;")

    def test_a_variant_among_all_lessons_then_blind(self):
        traces = self.folder / "traces"
        result = call("run", "all", "--variant=missing-set-epoch", "--reports", self.folder / "new" / "folder",
                      "--trace", traces)
        self.assertEqual(result.returncode, 0, result.stderr)
        report = self.folder / "new" / "folder" / "05_set_epoch.json"
        self.assertIn(f"report: {report}\n", result.stdout)
        self.assertEqual(result.stderr, "variant 1 of 1: missing-set-epoch\n")
        self.assertEqual([p.name for p in report.parent.iterdir()], [report.name])
        self.assertEqual([v["verdict"] for v in json.loads(report.read_text())["variants"]], ["as-expected"])
        diagnosis = call("diagnose", traces / "05_set_epoch" / "missing-set-epoch", "--json")
        self.assertEqual(diagnosis.returncode, 1, diagnosis.stderr)
        self.assertEqual([f["pitfall"] for f in json.loads(diagnosis.stdout)["findings"]], ["missing-set-epoch"])
        # Two attempts of a job, in order.
        first = traces / "05_set_epoch" / "missing-set-epoch"
        second = shutil.copytree(first, self.folder / "second")
        self.assertIn("named twice", call("diagnose", first, first).stderr)
        self.assert_usage(call("diagnose", first, second), "records no number of an attempt")
        job = self.folder / "job"
        shutil.copytree(first, job / "attempt_0")
        shutil.copytree(first, job / "attempt_1")
        again = call("diagnose", job, "--json")
        self.assertEqual(again.returncode, 1, again.stderr)
        self.assertIn("missing-set-epoch", [f["pitfall"] for f in json.loads(again.stdout)["findings"]])
        self.assertEqual(again.stderr, "")
        # Half of a job's traces: nothing found is no good news.
        half = self.folder / "half"
        half.mkdir()
        shutil.copy(first / "rank_0.trace", half)
        partial = call("diagnose", half, "--json")
        self.assertEqual(partial.returncode, 3, partial.stderr)
        self.assertEqual(json.loads(partial.stdout)["missing_ranks"], [1])
        # Somebody names the folder above, or one above many runs.
        above = call("diagnose", traces)
        self.assertEqual((above.returncode, above.stdout), (3, ""))
        self.assertIn(f" {first} ", flat(above.stderr) + " ")
        many = self.folder / "many"
        for number in range(7):
            shutil.copytree(first, many / f"run_{number}")
        above = call("diagnose", many).stderr
        self.assertEqual([f"run_{number}" in above for number in range(7)], [True] * 5 + [False] * 2)
        self.assertIn("and 2 more", above)
        self.assertEqual(call("diagnose", self.folder / "new").returncode, 3)
        (second / "rank_0.trace").unlink()
        self.assertIn("has the traces of 1 of 2 ranks; missing: rank 0.", flat(call("diagnose", second).stderr))

    def test_what_is_skipped_is_no_verdict(self):
        report = self.folder / "09.json"
        result = call("run", "09", "--world-size", "1", "--json", report)
        runs, told = result.stdout.split("\nBy rank, ")
        told, rest = told.split("\nThe answer\n")
        variants = json.loads(report.read_text())["variants"]
        skipped = [each for each in variants if each["verdict"] == "skipped"]
        self.assertGreater(len(skipped), 2)
        self.assertLess(len(skipped), len(variants), "a variant runs on one rank")
        reasons = {each["reason"] for each in skipped}
        self.assertLess(len(reasons), len(skipped))
        for reason in reasons:
            self.assertEqual((flat(runs).count(reason), flat(told).count(reason)), (1, 1), reason)
        self.assertEqual(runs.count("skipped, as above"), len(skipped) - len(reasons))
        self.assertEqual(told.count("found: "), len(variants) - len(skipped))
        for each in skipped:
            self.assertEqual(flat(told).count(each["name"]), 1)
        self.assertNotIn("ended otherwise: skipped", told)
        self.assertIn(f"ended as expected, {len(skipped)} were skipped. The report:", flat(rest))

    def test_all_lessons_are_counted_recorded_and_summed_up(self):
        # A build whose lessons are stand-ins: they write a report of two seconds, or none, and end as they are told to.
        build = self.folder / "build"
        (build / "bin").mkdir(parents=True)
        (build / "CMakeCache.txt").touch()
        program = shutil.copy(PROGRAM, build)
        lessons = [line.split()[0] for line in call("list").stdout.splitlines() if re.match(r"\d\d_\w+ ", line)]
        ends = {"03_ddp": 1, "04_sampler": 77, "05_set_epoch": 124, "06_sync_batch_norm": 3, "07_checkpoint": 77}
        without_report = ("06_sync_batch_norm", "07_checkpoint")
        verdicts = {"03_ddp": "not-named", "04_sampler": "skipped", "05_set_epoch": "not-completed"}
        for name in lessons:
            stand_in = build / "bin" / name
            stand_in.write_text(f"""#!/bin/sh
echo "{name} speaks"
{"exit " + str(ends[name]) if name in without_report else ""}
while [ $# -gt 0 ]; do if [ "$1" = --json ]; then report="$2"; fi; shift; done
echo '{{"variants": [{{"name": "a", "outcome": "completed", "timings": {{"seconds": 2}},
  "verdict": "{verdicts.get(name, "as-expected")}", "reason": "there is no GPU"}}]}}' >"$report"
exit {ends.get(name, 0)}
""")
            stand_in.chmod(0o755)
        recorded = self.folder / "state" / "lockstep" / "progress.json"

        def run_all(*more):
            result = subprocess.run([program, "run", "all", "--reports", self.folder / "reports", *more], capture_output=True,
                                    text=True, timeout=DEADLINE_S, stdin=subprocess.DEVNULL,
                                    env={**os.environ, "XDG_STATE_HOME": str(self.folder / "state")})
            self.assertEqual(result.returncode, 124, result.stderr)
            spoken = "".join(f"{name} speaks\n" for name in lessons)
            self.assertEqual(result.stdout[:len(spoken)], spoken)
            self.assert_sums_up(result.stdout[len(spoken):], len(lessons))
            told = result.stderr.splitlines()
            self.assertEqual([line.split(",")[0] for line in told],
                             [f"lesson {n} of {len(lessons)}: {name}" for n, name in enumerate(lessons, 1)])
            return told[0]

        self.assertNotIn("left", run_all("--variant", "correct"))
        for name in without_report:  # an earlier run's, which says nothing of this one
            shutil.copy(self.folder / "reports" / "01_single_device.json", self.folder / "reports" / f"{name}.json")
        self.assertFalse(recorded.exists(), "a single variant is not the lesson")
        self.assertIn(f", about {2 * len(lessons)} s left", run_all())
        done = json.loads(recorded.read_text())["lessons"]
        self.assertEqual(sorted(done), [name for name in lessons if ends.get(name, 1) == 1])
        self.assertRegex(done["03_ddp"]["ran"], r"^\d{4}-\d\d-\d\d$")

    def assert_sums_up(self, text, lessons):
        self.assertEqual(too_long(text), [])
        head, *rest = [flat(part) for part in re.split(r"\n  (?=\S)", text.strip())]
        self.assertEqual(head, "Summary")
        self.assertRegex(rest[0], rf"^{lessons} lessons, {lessons - 2} variants: {lessons - 5} as expected, "
                                  r"2 not as expected, 1 skipped; \d+ s$")
        self.assertEqual(rest[1:-1], ["not as expected: 03_ddp a (not-named) and 05_set_epoch a (not-completed)",
                                      "skipped: 1 variant of 04_sampler: there is no GPU",
                                      "skipped, no variant ran: 07_checkpoint: see above",
                                      "did not run: 06_sync_batch_norm"])
        self.assertEqual(rest[-1], f"reports: {self.folder / 'reports'}; one page of them: ./lockstep report"
                         f" --reports {self.folder / 'reports'}")

    def test_a_run_that_is_ended_leaves_nobody(self):
        for sent in (signal.SIGTERM, signal.SIGINT):
            with subprocess.Popen([PROGRAM, "run", "05", "--full", "--reports", self.folder], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  start_new_session=True) as process:
                try:
                    # The first variant has been told of, so the next one's ranks are under way or about to be.
                    for line in process.stdout:
                        if "accuracy" in line:
                            break
                    process.send_signal(sent)  # to this process only, as a batch system does
                    rest = process.communicate(timeout=DEADLINE_S)[1]
                    self.assertEqual(process.returncode, 128 + sent)
                    self.assertIn("no rank is left", rest)
                    self.assertEqual(session_members(process.pid), [])
                finally:
                    for left in session_members(process.pid):
                        os.kill(left, signal.SIGKILL)


class More(Base):
    def test_help_fits_80_columns(self):
        lessons = [line.split()[0] for line in call("list").stdout.splitlines() if re.match(r"\d\d_\w+ ", line)]
        commands = [[], ["list"], ["run"], ["explain"], ["exercise"], ["diagnose"], ["compare"]]
        commands += [["exercise", each] for each in ("start", "hint", "check", "reset")] + [["run", each] for each in lessons]
        for command in commands:
            with self.subTest(command=command):
                result = call(*command, "--help")
                self.assertEqual((result.returncode, result.stderr), (0, ""))
                self.assertGreater(len(result.stdout), 100)
                self.assertEqual(too_long(result.stdout), [])

    def test_what_was_misspelt_is_offered_as_it_is_spelt(self):
        variant = "the nearest: missing-set-epoch,"
        self.assert_usage(call("run", "set_epok"), 'no lesson "set_epok"; the nearest: 05_set_epoch,')
        self.assert_usage(call("run", "set-epok"), "the nearest: 05_set_epoch,")
        self.assert_usage(call("run", "05", "--variant", "missing-set-epohc"), 'no variant "missing-set-epohc" in 05_', variant)
        self.assert_usage(call("run", "05", "--variant", "missing_set_epoch"), variant)
        self.assert_usage(call("run", "all", "--variant", "missing-set-epohc"), "no lesson has a variant", variant)
        for action in ("start", "hint", "check", "reset"):
            self.assert_usage(call("exercise", action, "missing-set-epohc"), 'no exercise "missing-set-epohc"', variant)
        self.assert_usage(call("exercise", "start", "set_epok"), "the nearest: 05_set_epoch,")

    def test_a_look_at_a_job_that_runs_says_so(self):
        traces = self.folder / "traces"
        said, of_copies = [], []
        with subprocess.Popen([PROGRAM, "run", "09", "--variant", "rank-zero-long-work", "--world-size", "3",
                               "--reports", self.folder, "--trace", traces], stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            folder = traces / "09_hanging_collective" / "rank-zero-long-work"
            while process.poll() is None:
                said.append(flat(call("diagnose", folder).stderr))
                # What is left where somebody ends the job at this moment.
                copy = self.folder / f"ended_{len(said)}"
                try:
                    shutil.copytree(folder, copy)
                except OSError:
                    continue  # a file has just got its name
                of_copies.append(flat(call("diagnose", copy).stderr))
        self.assertTrue([text for text in said if "note: ranks 0, 1 and 2 still run." in text], said[-5:])
        # Ranks 1 and 2 wait for two seconds before they give up.
        where = "rank 0 has not arrived at allreduce number 10"
        self.assertTrue([text for text in said if re.search(rf"here for \d+ seconds?: {where}", text)], said[-5:])
        self.assertTrue([text for text in of_copies if f"did not end by itself, and was here: {where}" in text], of_copies[-5:])
        self.assertNotIn("still run", call("diagnose", folder).stderr)

    def test_a_failure_without_a_finding_is_told_of(self):
        traces = self.folder / "traces"
        call("run", "10", "--variant", "rank-as-device-index", "--reports", self.folder, "--trace", traces)
        folder = traces / "10_launch" / "rank-as-device-index"
        self.assertEqual(call("diagnose", folder).returncode, 1)
        for rank in (2, 3):
            (folder / f"rank_{rank}.trace").unlink()
        result = call("diagnose", folder)
        self.assertIn("missing: 2 and 3.", flat(result.stderr))
        self.assertIn("note: by its launcher's word rank 2 ended otherwise: raised, exit code 3.", flat(result.stderr))
        self.assertEqual(too_long(result.stdout + result.stderr), [])

    def test_a_run_tells_its_story_in_order_and_its_progress_aside(self):
        reports = self.folder / "reports"
        for measured in (False, True):
            result = call("run", "05", "--reports", reports)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(too_long(result.stdout + result.stderr), [])
            places = [result.stdout.find(text) for text in (
                "\nThe idea\n", "\nA prediction to make\n", "\nThe runs\n", "05_set_epoch: ", "violation: missing-set-epoch, ranks 0 and 1",
                "05_set_epoch: 7 of 7 variants as expected", "\nBy rank, expected against observed", "\nThe answer\n",
                "\nThe pitfalls\n", "\nExercise\n",
                "Every variant ended as expected.")]
            self.assertNotIn(-1, places)
            self.assertEqual(places, sorted(places))
            told = result.stderr.splitlines()
            self.assertEqual([line.split(":")[0] for line in told], [f"variant {n} of 7" for n in range(1, 8)])
            # At first from the variants before; then from the last report.
            self.assertRegex(told[0], r"^variant 1 of 7: correct" + (r", about \d+ s left$" if measured else "$"))
            self.assertRegex(told[1], r"^variant 2 of 7: missing-set-epoch, about \d+ s left$")
        result = call("run", "05", "--variant", "missing-set-epoch", "--reports", reports)
        self.assertRegex(result.stderr.splitlines()[0], r"^variant 1 of 1: missing-set-epoch, about \d+ s left$")

    def test_progress_is_one_line_of_a_terminal(self):
        ours, theirs = pty.openpty()
        try:
            result = subprocess.run([PROGRAM, "run", "05", "--variant", "correct", "--reports", self.folder], timeout=DEADLINE_S,
                                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs, text=True,
                                    env={**os.environ, "XDG_STATE_HOME": STATE.name, "TERM": "xterm"})
            told = os.read(ours, 1 << 16).decode()
        finally:
            os.close(ours)
            os.close(theirs)
        self.assertEqual(result.returncode, 0, told)
        self.assertEqual(told, "variant 1 of 1: correct\r\033[K")
        self.assertNotIn("\033", result.stdout)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
