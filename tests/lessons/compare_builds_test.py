"""tests/lessons/compare_builds.py on programs that only pretend to be lessons."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent / "compare_builds.py"
# Its variants are beside it, by name. A loss "counted" is another one in every run.
PROGRAM = """#!/usr/bin/env python3
import json, pathlib, sys, time
here = pathlib.Path(sys.argv[0])
beside = lambda what: here.with_name(f".{here.name}.{what}")
variants = json.loads(beside("json").read_text())
if "--describe" in sys.argv:
    print(json.dumps({"variants": [{"name": name} for name in variants]}))
    sys.exit()
argument = lambda name: sys.argv[sys.argv.index(name) + 1]
one = variants[argument("--variant")]
if one.get("hangs"):
    time.sleep(60)
if one.get("breaks"):
    sys.exit("no such backend")
if one["losses"] == "counted":
    runs = beside("runs")
    runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
    one["losses"] = [len(runs.read_text())]
one["accuracy"] = [int(argument("--world-size")) if "--world-size" in sys.argv else 2]
pathlib.Path(argument("--json")).write_text(json.dumps({"variants": [one]}))
"""
FINDING = {"pitfall": "a-pitfall", "severity": "violation", "ranks": [0, 1], "step": 3, "evidence": "0.5 apart"}


def variant(**more):
    return {"verdict": "as-expected", "outcome": "completed", "losses": [[1.5, 1.25], [1.5, 1.25]], "findings": [],
            "oracles": [{"pitfall": "a-pitfall", "observed": 0, "manifested": False}], **more}


class CompareBuilds(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-compare-test-")
        self.addCleanup(folder.cleanup)
        self.top = pathlib.Path(folder.name)

    def build(self, name, lesson="01_one", **variants):
        program = self.top / name / lesson
        program.parent.mkdir(exist_ok=True)
        program.write_text(PROGRAM, encoding="utf-8")
        program.chmod(0o755)
        program.with_name(f".{lesson}.json").write_text(json.dumps(variants), encoding="utf-8")

    def compared(self, *options, code=0):
        """The lines that are printed; the last is the count."""
        done = subprocess.run([sys.executable, SCRIPT, self.top / "before", self.top / "after", *options],
                              capture_output=True, text=True, timeout=50)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return (done.stderr if code == 3 else done.stdout).splitlines()

    def both(self, before, after):
        self.build("before", correct=before)
        self.build("after", correct=after)

    def test_equal_builds(self):
        for build in ("before", "after"):
            self.build(build, correct=variant(), broken=variant(findings=[FINDING]))
            self.build(build, "02_two", correct=variant())
        self.assertEqual(self.compared(), ["6 runs compared: 0 differ"])
        self.assertEqual(self.compared("01_one:broken", "02_two", "--ranks", "default"), ["2 runs compared: 0 differ"])

    def test_says_where_the_first_difference_is(self):
        self.both(variant(), variant(losses=[[1.5, 1.25], [1.5, 1.125]]))
        line = "losses[1][1]: 1.25 -> 1.125"
        self.assertEqual(self.compared(code=1), [f"01_one correct ({ranks} ranks) {line}" for ranks in ("default", 3)] +
                         ["2 runs compared: 2 differ"])

    def test_each_field_that_differs_has_a_line(self):
        oracle = {"pitfall": "a-pitfall", "observed": 1, "manifested": True}
        self.both(variant(), variant(verdict="manifested", outcome="crash", oracles=[oracle], findings=[FINDING]))
        lines = self.compared("--ranks", "3", code=1)
        self.assertEqual([line.split()[4].split("[")[0].strip(":") for line in lines[:-1]],
                         ["findings", "oracles", "outcome", "verdict"])
        self.assertEqual(lines[-1], "1 runs compared: 1 differ")

    def test_evidence_may_be_said_otherwise(self):
        self.both(variant(findings=[FINDING]), variant(findings=[{**FINDING, "evidence": "1.5 apart"}]))
        self.compared()

    def test_what_one_build_lacks(self):
        self.build("before", correct=variant(), old=variant())
        self.build("after", correct=variant(), new=variant())
        self.assertEqual(self.compared("--ranks", "3", code=1),
                         ["01_one old: only before", "01_one new: only after", "3 runs compared: 2 differ"])

    def test_what_varies_by_itself_is_said_and_not_counted(self):
        self.both(variant(losses="counted"), variant(losses=[7]))
        lines = self.compared("--ranks", "3")
        self.assertTrue(lines[0].endswith("losses[0]: 1 -> 7 (varies)"), lines)
        self.assertEqual(lines[1], "1 runs compared: 0 differ, 1 vary by themselves")

    def test_a_run_without_a_report_is_never_equal(self):
        for broken, words in (({"breaks": True}, "exit code 1: no such backend"),
                              ({"hangs": True}, "no end within 1.0 s")):
            self.both(variant(**broken), variant(**broken))
            lines = self.compared("--ranks", "3", "--deadline", "1", code=1)
            self.assertIn(words, lines[0])
            self.assertEqual(lines[1], "1 runs compared: 1 differ")

    def test_blind_programs_find_nothing_and_judge_the_same(self):
        seeing = variant(findings=[FINDING])
        self.both(seeing, variant(verdict="not-named"))
        self.assertEqual(self.compared("--blind", "--ranks", "3"), ["1 runs compared: 0 differ"])
        self.both(seeing, seeing)
        self.assertIn("findings: [] -> [{", self.compared("--blind", "--ranks", "3", code=1)[0])
        self.both(seeing, variant(losses=[]))
        self.assertIn(" losses: ", self.compared("--blind", "--ranks", "3", code=1)[0])

    def test_says_what_is_missing(self):
        self.build("before", correct=variant())
        self.assertIn("after/01_one", self.compared(code=3)[0])
        self.build("after", correct=variant())
        self.assertIn("none (exit code 1", self.compared("01_one:other", code=1)[0])
        (self.top / "before" / "01_one").rename(self.top / "before" / "one")
        self.assertIn("there is no lesson in", self.compared(code=3)[0])


if __name__ == "__main__":
    unittest.main(verbosity=1)
