"""How tests/matrix.py adds up settings: python3 matrix_sweep_test.py"""

import json
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
import matrix  # noqa: E402

try:
    import jsonschema
except ImportError:
    jsonschema = None


def run(form, cell, pitfall=None, size=2, seed=0, noise=0, steps=None):
    return {"name": f"05_a/{form} ({size} ranks, seed {seed})", "family": "05", "pitfall": pitfall, "ranks": [0], "step": 3,
            "cell": cell, "findings": [], "noise": noise, "steps_until_found": steps}


def setting(size, seed, runs, blind=True):
    return {"world_size": size, "seed": seed, "date": "2026-01-01", "commit": "abc", "blind": blind, "cannot_show": [],
            "levels": [{"runs": runs(size, seed)} for _ in matrix.LEVELS]}


def good(size, seed):
    return [run("late", "exact", "late", size, seed, steps=0), run("correct", "clean", None, size, seed),
            run("near-miss-x", "clean", None, size, seed)]


class Sweep(unittest.TestCase):
    def test_shares_are_the_scorers(self):
        # score_test.cpp has the same figures.
        self.assertAlmostEqual(matrix.share(1, 1)["low"], 0.20654931, places=6)
        self.assertEqual(matrix.share(0, 0)["value"], None)
        self.assertAlmostEqual(matrix.share(0, 300)["high"], 0.01264302, places=6)
        self.assertEqual(matrix.share(0, 300)["low"], 0.0)

    def test_a_good_sweep(self):
        result = matrix.summary([setting(size, seed, good) for size in (3, 2) for seed in range(3)])
        level = result["levels"][2]
        self.assertEqual(level["exact"]["successes"], 6)
        self.assertEqual(level["exact"]["trials"], 6)
        self.assertEqual([it["world_size"] for it in level["by_world_size"]], [2, 3])
        self.assertEqual(level["by_world_size"][0]["exact"]["trials"], 3)
        self.assertEqual(level["median_steps"], 0)
        self.assertEqual(level["not_exact"], [])
        # Two programs of six runs each: five of each count.
        self.assertEqual(level["healthy"]["programs"], 2)
        self.assertEqual(level["healthy"]["runs"], 12)
        self.assertEqual(level["healthy"]["false_alarms"]["trials"], 10)
        self.assertTrue(matrix.is_good(result))

    def test_an_alarm_is_never_among_those_left_out(self):
        runs = [run("correct", "clean", None, 2, seed) for seed in range(9)] + [run("correct", "false-alarm", None, 2, 9)]
        self.assertEqual(matrix.healthy(runs)["false_alarms"]["successes"], 1)
        self.assertEqual(matrix.healthy(runs)["false_alarms"]["trials"], 5)

    def test_what_is_wrong_is_named(self):
        for cell in ("slug-only", "family-only", "wrong-name", "missed", "not-triggered", "error"):
            result = matrix.summary([setting(2, 0, lambda *at: [run("late", cell, "late", *at)])])
            self.assertEqual([it["cell"] for it in result["levels"][2]["not_exact"]], [cell])
            self.assertEqual(result["levels"][2]["exact"]["trials"], 1)
            self.assertFalse(matrix.is_good(result))
            self.assertIn(f"{cell}: 05_a/late (2 ranks, seed 0)", matrix.in_words(result))
        for wrong in (run("correct", "false-alarm"), run("late", "exact", "late", noise=1), run("late", "clean"),
                      run("near-miss-x", "exact", "late")):
            self.assertFalse(matrix.is_good(matrix.summary([setting(2, 0, lambda *_: [wrong])])), wrong)
        self.assertFalse(matrix.is_good(matrix.summary([setting(2, 0, good, blind=False)])))

    def test_what_cannot_show_counts_for_nothing(self):
        result = matrix.summary([setting(2, 0, lambda *at: [run("late", "not-applicable", "late", *at, noise=1),
                                                            run("correct", "not-triggered", None, *at)])])
        level = result["levels"][0]
        self.assertEqual((level["exact"]["trials"], level["healthy"]["false_alarms"]["trials"]), (0, 0))
        self.assertTrue(matrix.is_good(result))

    def test_settings_that_are_there_are_not_run_again(self):
        with tempfile.TemporaryDirectory() as folder:
            matrix.SCORES, matrix.RESULT = pathlib.Path(folder), pathlib.Path(folder) / "result.json"
            (matrix.SCORES / "w2_s0.json").write_text(json.dumps(setting(2, 0, good)), encoding="utf-8")
            result, _ = matrix.sweep(pathlib.Path("nowhere"), [2], [0])
            self.assertEqual(json.loads(matrix.RESULT.read_text(encoding="utf-8")), result)

    @unittest.skipIf(jsonschema is None, "jsonschema is not installed")
    def test_results_fit_their_schema(self):
        schema = json.loads((ROOT / "reports/schema/matrix_sweep.schema.json").read_text(encoding="utf-8"))
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.validate(matrix.summary([setting(2, 0, good)]), schema)
        measured = ROOT / "reports/measured/matrix.json"
        if measured.exists():
            jsonschema.validate(json.loads(measured.read_text(encoding="utf-8")), schema)


if __name__ == "__main__":
    unittest.main(verbosity=1)
