"""lockstep-course compare from its command line, on recorded runs of lessons.

usage: command_test.py BIN COURSE
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import jsonschema
import referencing

DEADLINE_S = 60
RUNS = {"first": ("05_set_epoch", "correct"), "again": ("05_set_epoch", "correct"),
        "faulty": ("05_set_epoch", "missing-set-epoch")}
SCHEMAS = pathlib.Path(__file__).resolve().parents[2] / "reports" / "schema"
BIN, COURSE = None, None


def flat(text):
    """Without the breaks that fill lines to 80 columns."""
    return " ".join(text.split())


def compare(*arguments):
    return subprocess.run([COURSE, "compare", *map(str, arguments)], capture_output=True, text=True, timeout=DEADLINE_S,
                          stdin=subprocess.DEVNULL)


class Command(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="lockstep-compare-test-")
        cls.addClassCleanup(cls.folder.cleanup)
        cls.top = pathlib.Path(cls.folder.name)
        for name, (lesson, variant) in RUNS.items():
            done = subprocess.run([BIN / lesson, "--variant", variant, "--trace", cls.top / name], capture_output=True,
                                  text=True, timeout=DEADLINE_S, stdin=subprocess.DEVNULL,
                                  env={**os.environ, "OMP_NUM_THREADS": "1"})
            assert done.returncode == 0, done.stdout + done.stderr
        cls.first, cls.again, cls.faulty = (cls.top / name / lesson / variant for name, (lesson, variant) in RUNS.items())

    def copy_of(self, folder):
        copy = pathlib.Path(tempfile.mkdtemp(dir=self.top)) / "copy"
        shutil.copytree(folder, copy)
        return copy

    def assert_usage(self, result, *texts):
        self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
        self.assertEqual(result.stderr.count("error:"), 1, result.stderr)
        for text in texts:
            self.assertIn(text, flat(result.stderr))

    def test_the_same_run_twice_is_equal_to_the_bit(self):
        result = compare(self.first, self.again)
        self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout)
        self.assertIn("equal to the bit, in all that was compared", flat(result.stdout))

    def test_a_fault_is_told_by_cause_and_step(self):
        result = compare(self.first, self.faulty, "--json")
        self.assertEqual((result.returncode, result.stderr), (1, ""))
        said = json.loads(result.stdout)
        self.assertEqual((said["answer"], said["first"]), ("different", "own-samples"))
        data = next(line for line in said["ledger"] if line["equation"] == "own-samples")
        self.assertEqual((data["standing"], data["broken_by"], data["ranks"]), ("broken", ["train samples"], [0, 1]))
        # The first epoch is the same: the second one's first batch is not.
        updates = said["a"]["updates"]
        self.assertEqual((data["step"], data["after"]), (updates // 3, updates // 3 - 1))
        self.assertEqual(said["agree_until"], updates // 3 - 1)
        text = compare(self.first, self.faulty).stdout
        self.assertIn(f"agree until step {said['agree_until']}, then they differ. They part first in this: differ ranks draw "
                      "different samples", flat(text))
        self.assertEqual([line for line in text.splitlines() if len(line) > 80 and " " in line.strip()], [])

    def test_json_is_as_the_schema_says(self):
        """Of runs that are equal, differ, and leave it undecided. A schema that takes anything would be no check."""
        schema, job = (json.loads((SCHEMAS / name).read_text(encoding="utf-8"))
                       for name in ("compare.schema.json", "job.schema.json"))
        jsonschema.Draft202012Validator.check_schema(schema)
        known = referencing.Registry().with_resource("job.schema.json", referencing.Resource.from_contents(job))
        validator = jsonschema.Draft202012Validator(schema, registry=known)
        answers = set()
        for other in (self.again, self.faulty, self.copy_of(self.first)):
            said = json.loads(compare(self.first, other, "--json").stdout)
            self.assertEqual([f"{error.json_path}: {error.message}" for error in validator.iter_errors(said)], [])
            answers.add(said["answer"])
        self.assertLessEqual({"equal", "different"}, answers)
        self.assertFalse(validator.is_valid({**said, "answer": "similar"}))
        self.assertFalse(validator.is_valid({**said, "more": 1}))
        self.assertFalse(validator.is_valid({**said, "ledger": said["ledger"][:16]}))
        self.assertFalse(validator.is_valid({**said, "ledger": [{**line, "standing": "fine"} for line in said["ledger"]]}))

    def test_a_part_is_compared_with_the_same_part(self):
        half, other = self.copy_of(self.first), self.copy_of(self.first)
        (half / "rank_1.trace").unlink()
        for pair in ((self.first, half), (half, self.first)):
            self.assert_usage(compare(*pair), f"{half} holds the traces of rank 0 only, of 2 ranks")
        (other / "rank_1.trace").unlink()
        result = compare(half, other)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("the trace of a rank of B is missing", flat(result.stdout))

    def test_a_damaged_trace_is_wrong_use(self):
        damaged = self.copy_of(self.first)
        file = damaged / "rank_1.trace"
        file.write_bytes(b"X" + file.read_bytes()[1:])
        self.assert_usage(compare(self.first, damaged), "rank_1.trace")
        self.assert_usage(compare(damaged, self.first), "rank_1.trace")

    def test_wrong_use(self):
        self.assert_usage(compare(self.first, self.top / "nowhere"), "nowhere")
        self.assert_usage(compare(self.first), "b is required")
        self.assert_usage(compare(self.first, self.first), "are one folder; name two runs")
        self.assert_usage(compare(self.first, self.again, self.faulty), "not expected")
        self.assert_usage(compare(self.first, self.again, "--jsno"), "--jsno")

    def test_runs_without_a_value_leave_it_undecided(self):
        """Each process of a group of its own, without a model: nothing says that it is the same training."""
        result = subprocess.run([BIN / "09_hanging_collective", "--variant", "correct", "--trace", self.top / "calls"],
                                capture_output=True, text=True, timeout=DEADLINE_S, stdin=subprocess.DEVNULL)
        self.assertEqual(result.returncode, 0, result.stderr)
        bare = sorted(path.parent for path in (self.top / "calls").rglob("rank_0.trace"))[0]
        result = compare(bare, self.copy_of(bare))
        self.assertEqual(result.returncode, 3, result.stdout)
        self.assertIn("It cannot be decided", result.stdout)


if __name__ == "__main__":
    BIN, COURSE = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
    unittest.main(argv=sys.argv[:1])
