"""How evaluation/matrix.py adds up settings, and whose scores it keeps: python3 matrix_test.py"""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "evaluation"))
import jsonschema  # noqa: E402
import matrix  # noqa: E402


def run(variant, word, pitfall=None, size=2, seed=0):
    return {"name": f"05_a/{variant} ({size} ranks, seed {seed})", "class": "05", "kind": "fault" if pitfall else "benign",
            "names": [pitfall] if pitfall else [], "ranks": [0], "step": 3, "verdict": word, "findings": [], "reason": ""}


def setting(size, seed, runs, blind=True):
    return {"world_size": size, "seed": seed, "date": "2026-01-01", "commit": "abc", "blind": blind, "cannot_show": [],
            "levels": [{"runs": runs(size, seed)} for _ in matrix.LEVELS]}


def good(size, seed):
    return [run("late", "exact", "late", size, seed), run("correct", "clean", None, size, seed),
            run("near-miss-x", "clean", None, size, seed)]


class Sweeping:
    """Sweeps of settings that are made by hand, of a build that is a file."""

    def __enter__(self):
        self.patched = matrix.SCORES, matrix.RESULT, matrix.setting
        self.folder = tempfile.TemporaryDirectory(prefix="lockstep-sweep-")
        top = pathlib.Path(self.folder.name)
        matrix.SCORES, matrix.RESULT, matrix.setting = top / "scores", top / "result.json", self.setting
        self.build, self.run, self.said, self.before_scoring = top / "build", [], "", lambda: None
        self.build.mkdir()
        self.build_anew("detectors")
        return self

    def __exit__(self, *_):
        matrix.SCORES, matrix.RESULT, matrix.setting = self.patched
        self.folder.cleanup()

    def build_anew(self, text):
        (self.build / "lockstep-course").write_text(text, encoding="utf-8")

    def setting(self, build, world_size, seed, only, kept):
        self.run.append((world_size, seed))
        self.before_scoring()
        return setting(world_size, seed, good)

    def sweep(self, *arguments):
        with contextlib.redirect_stderr(io.StringIO()) as said:
            try:
                return matrix.sweep(self.build, *arguments)
            finally:
                self.said = said.getvalue()


class Sweep(unittest.TestCase):
    def test_a_good_sweep(self):
        result = matrix.summary([setting(size, seed, good) for size in (3, 2) for seed in range(3)])
        level = result["levels"][2]
        self.assertEqual(level["exact"]["successes"], 6)
        self.assertEqual(level["exact"]["trials"], 6)
        self.assertEqual([it["world_size"] for it in level["by_world_size"]], [2, 3])
        self.assertEqual(level["by_world_size"][0]["exact"]["trials"], 3)
        self.assertEqual(level["not_exact"], [])
        # Two programs of six runs each: five of each count.
        self.assertEqual(level["healthy"]["programs"], 2)
        self.assertEqual(level["healthy"]["runs"], 12)
        self.assertEqual(level["healthy"]["false_alarms"]["trials"], 10)
        self.assertTrue(matrix.is_good(result))

    def test_an_alarm_is_never_among_those_left_out(self):
        runs = [run("correct", "clean", None, 2, seed) for seed in range(9)] + [run("correct", "false alarm", None, 2, 9)]
        self.assertEqual(matrix.healthy(runs)["false_alarms"]["successes"], 1)
        self.assertEqual(matrix.healthy(runs)["false_alarms"]["trials"], 5)

    def test_what_is_wrong_is_named(self):
        for word in ("named", "noticed, ranks and step right", "noticed", "silent", "not triggered", "error"):
            result = matrix.summary([setting(2, 0, lambda *at: [run("late", word, "late", *at)])])
            self.assertEqual([it["verdict"] for it in result["levels"][2]["not_exact"]], [word])
            self.assertEqual(result["levels"][2]["exact"]["trials"], 1)
            self.assertFalse(matrix.is_good(result))
            self.assertIn(f"{word}: 05_a/late (2 ranks, seed 0)", matrix.in_words(result))
        for wrong in (run("correct", "false alarm"), run("late", "clean"),
                      run("near-miss-x", "exact", "late")):
            self.assertFalse(matrix.is_good(matrix.summary([setting(2, 0, lambda *_: [wrong])])), wrong)
        self.assertFalse(matrix.is_good(matrix.summary([setting(2, 0, good, blind=False)])))

    def test_what_cannot_show_counts_for_nothing(self):
        result = matrix.summary([setting(2, 0, lambda *at: [run("late", "not applicable", "late", *at),
                                                            run("correct", "not triggered", None, *at)])])
        level = result["levels"][0]
        self.assertEqual((level["exact"]["trials"], level["healthy"]["false_alarms"]["trials"]), (0, 0))
        self.assertTrue(matrix.is_good(result))

    def test_a_part_is_no_measurement(self):
        with Sweeping() as sweeping:
            sweeping.sweep([2], [0], ["05_a"])
            self.assertEqual(sweeping.run, [(2, 0)])
            self.assertFalse(matrix.RESULT.exists())

    def test_settings_that_are_there_are_not_run_again(self):
        with Sweeping() as sweeping:
            result, _ = sweeping.sweep([2, 3], [0])
            self.assertEqual(json.loads(matrix.RESULT.read_text(encoding="utf-8")), result)
            again, _ = sweeping.sweep([3, 4], [0])
            self.assertEqual(sweeping.run, [(2, 0), (3, 0), (4, 0)])
            self.assertEqual([it["world_size"] for it in again["settings"]], [2, 3, 4])

    def test_scores_of_other_detectors_are_not_taken(self):
        with Sweeping() as sweeping:
            sweeping.sweep([2, 3], [0])
            (matrix.SCORES / "w2_s0.json").write_text("from before there were keys", encoding="utf-8")
            sweeping.build_anew("other detectors")
            result, _ = sweeping.sweep([2], [0])
            self.assertEqual(sweeping.run, [(2, 0), (3, 0), (2, 0)])
            self.assertEqual([it["world_size"] for it in result["settings"]], [2])
            self.assertIn("w2_s0 ... (it has scores of other detectors, which are not taken)", sweeping.said)

    def test_a_build_that_changes_meanwhile_is_no_ones_score(self):
        with Sweeping() as sweeping:
            sweeping.before_scoring = lambda: sweeping.build_anew("other detectors")
            with self.assertRaisesRegex(RuntimeError, "was built anew while w2_s0 ran"):
                sweeping.sweep([2], [0])
            self.assertEqual(list(matrix.SCORES.rglob("*.json")), [])

    def test_kept_runs_are_scored_whatever_is_there(self):
        with Sweeping() as sweeping:
            sweeping.sweep([2], [0, 1])
            kept = matrix.SCORES.parent / "kept"
            for name in ("w2_s0", "w3_s0"):
                (kept / name).mkdir(parents=True)
            sweeping.sweep([2, 3], [0], [], kept)
            self.assertEqual(sweeping.run, [(2, 0), (2, 1), (2, 0), (3, 0)])
            with self.assertRaisesRegex(RuntimeError, "there is no folder .*w4_s0"):
                sweeping.sweep([2, 4], [0], [], kept)
            self.assertEqual(len(sweeping.run), 4)

    def test_results_fit_their_schema(self):
        schema = json.loads((ROOT / "reports/schema/matrix_sweep.schema.json").read_text(encoding="utf-8"))
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.validate(matrix.summary([setting(2, 0, good)]), schema)
        measured = ROOT / "reports/results/matrix.json"
        if measured.exists():
            jsonschema.validate(json.loads(measured.read_text(encoding="utf-8")), schema)


if __name__ == "__main__":
    unittest.main(verbosity=1)
