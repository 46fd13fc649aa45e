"""./lockstep matrix on recorded runs: recorded_runs_test.py COURSE (lockstep-course)"""

import contextlib
import io
import json
import pathlib
import shutil
import struct
import sys
import tempfile
import unittest

import jsonschema
import recorded_runs
import scoring

ROOT = pathlib.Path(__file__).resolve().parents[1]
TRACES = ROOT / "tests" / "diagnose" / "old_traces"
MEASURED = ROOT / "reports" / "results" / "side_by_side.json"
HEAD = 4096  # of a trace; how much of it holds records stands at byte 64
BROKEN = {"kind": "fault", "names": ["no-initial-broadcast"], "ranks": [0, 1], "step": -1}


class Runs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-recorded-runs-")
        self.addCleanup(folder.cleanup)
        self.top, self.runs = pathlib.Path(folder.name), pathlib.Path(folder.name) / "runs"

    def make(self, name, traces="no_initial_broadcast", **truth):
        """A run with these traces; without names a right one."""
        shutil.copytree(TRACES / traces, self.runs / name, ignore=shutil.ignore_patterns("*.json"))
        record = {"schema_version": 2, "name": name, "class": "03", **(truth or {"kind": "benign"})}
        (self.runs / name / "truth.json").write_text(json.dumps(record))
        return self.runs / name

    def make_all(self):
        self.make("broken", **BROKEN)
        self.make("right", "every_kind")

    def make_dark(self):
        """Nothing in it can be looked at."""
        for trace in self.make("dark").glob("*.trace"):
            data = trace.read_bytes()[:HEAD]
            trace.write_bytes(data[:64] + struct.pack("<Q", HEAD) + data[72:])

    def matrix(self, *options):
        """(exit code, stdout, stderr)"""
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            try:
                code = recorded_runs.main([str(self.runs), "--course", COURSE, *map(str, options)])
            except SystemExit as usage:
                code = usage.code
        return code, out.getvalue(), err.getvalue()

    def expect(self, code, words, *options):
        got, out, err = self.matrix(*options)
        self.assertEqual(got, code, out + err)
        self.assertIn(words, out + err)
        if code:
            self.assertIn("error: " if code > 1 else "", err)
        return out

    def test_0_where_all_is_as_it_should_be(self):
        self.make_all()
        self.make("impossible", **BROKEN, applicable=False)
        self.make_dark()
        out = self.expect(0, "note: 1 healthy run could not be looked at", "--json", self.top / "matrix.json")
        for line in (f"{'exact':31}broken: no-initial-broadcast", f"{'clean':31}right",
                     f"{'not applicable':31}impossible: no-initial-broadcast", "lockstep diagnose, level 2"):
            self.assertIn(line + "\n", out)
        result = json.loads((self.top / "matrix.json").read_text())
        self.assertEqual(result["totals"]["exact"], scoring.share(1, 1))
        self.assertEqual(result["totals"]["verdicts"],
                         {"exact": 1, "clean": 1, "not triggered": 1, "not applicable": 1})

    def test_1_where_something_is_not(self):
        for word, truth in (("named", {**BROKEN, "ranks": [0]}), ("named", {**BROKEN, "step": 3}),
                            ("noticed, ranks and step right", {**BROKEN, "names": ["sum-not-mean"]}),
                            ("noticed", {**BROKEN, "names": ["sum-not-mean"], "ranks": [1]}),
                            ("false alarm", {"kind": "benign"})):
            shutil.rmtree(self.runs, ignore_errors=True)
            self.make("case", **truth)
            self.expect(1, f"{word:31}case: no-initial-broadcast\n")
        self.make("other", "every_kind", **{**BROKEN, "names": ["no-such-pitfall"]})
        self.expect(1, f"{'not triggered':31}other\n")

    def test_2_for_wrong_use(self):
        self.make_all()
        self.expect(2, "--level: invalid choice", "--level", 3)
        self.expect(2, "--checker names no command", "--checker", "")
        self.expect(2, "--deadline 0", "--checker", "true", "--deadline", 0)
        self.expect(2, "--level is for our own detectors", "--checker", "true", "--level", 1)
        shutil.copytree(self.runs / "right", self.runs / "again")
        self.expect(2, f"two runs are called right: {self.runs / 'again'} and {self.runs / 'right'}")

    def test_3_where_nothing_can_be_scored(self):
        self.expect(3, f"there is no folder {self.runs}")
        self.runs.mkdir()
        self.expect(3, "no truth.json in or below")
        self.make("impossible", **BROKEN, applicable=False)
        self.make_dark()
        self.expect(3, "nothing was scored")
        right = self.make("right", "every_kind")
        self.expect(0, "clean")
        for command in ("no-such-checker", "/etc", "./nowhere/checker --fast"):
            self.expect(3, "the checker could not be started", "--checker", command)
        for text, words in (("{", "truth.json"), ('{"schema_version": 1, "name": "x"}', "version 1; this Lockstep reads 2"),
                            ('{"schema_version": 2, "kind": "benign"}', "'name' is a required property")):
            (right / "truth.json").write_text(text)
            self.expect(3, words)
        shutil.rmtree(right)
        trace = self.make("right") / "rank_0.trace"
        trace.write_text("no trace")
        self.expect(3, str(trace))
        for one in trace.parent.glob("*.trace"):
            one.unlink()
        self.expect(3, f"{trace.parent}: a truth.json and no trace", "--checker", "true")

    def test_what_is_written_replaces_a_file_and_follows_no_link(self):
        self.make_all()
        victim, link = self.top / "victim", self.top / "matrix.json"
        victim.write_text("kept")
        link.symlink_to(victim)
        self.expect(3, "a link is there", "--json", link)
        self.assertEqual(victim.read_text(), "kept")

    def test_what_a_checker_leaves_behind_keeps_no_answer_and_ends(self):
        deep = self.make("right", "every_kind") / "attempts" / "of_one"
        deep.mkdir(parents=True)
        shutil.copy(TRACES / "every_kind" / "rank_0.trace", deep)
        pid = self.top / "pid"
        self.expect(0, "clean", "--deadline", 30, "--checker",
                    f"""sleep 600 & echo $! > '{pid}'; echo '{{"findings": []}}' #""")
        status = pathlib.Path("/proc", pid.read_text().strip(), "status")
        self.assertTrue(not status.exists() or "State:\tZ" in status.read_text(), "it is still there")

    def test_our_detectors_are_shown_a_level(self):
        self.make_all()
        self.expect(0, f"{'not applicable':31}broken\n", "--level", 0)  # its page says level 1
        self.expect(0, f"{'exact':31}broken", "--level", 1)
        needed = [recorded_runs.level_needed(name) for name in ("no-initial-broadcast", "no-such")]
        self.assertEqual(needed, [1, 0])

    def ask(self, text, deadline=20):
        [case] = [case for case in recorded_runs.find_cases([self.runs]) if case.record["name"] == "broken"]
        (self.top / "checker.sh").write_text(text)
        return recorded_runs.ask_program(f"sh '{self.top / 'checker.sh'}'", case, deadline)

    def test_any_program_answers(self):
        self.make_all()
        said = {"pitfall": "x", "ranks": [1], "step": 4, "severity": "advice"}
        self.assertEqual(self.ask(f"echo '{json.dumps({'findings': [said]})}'"), ([said], "answered", ""))
        self.assertEqual(self.ask("echo '{\"findings\": []}'; exit 1"), ([], "answered", ""))
        self.assertEqual(self.ask("echo '{\"not_triggered\": true}'")[1], "not triggered")
        for text in ("true", "echo no JSON", "exit 3", "kill -9 $$", "echo '{\"findings\": [{\"slug\": \"x\"}]}'",
                     "echo '{\"findings\": 3}'", "echo '[]'", "echo '{}'", "echo '{\"not_triggered\": false}'"):
            self.assertEqual(self.ask(text)[:2], ([], "error"), text)
        self.assertEqual(self.ask("sleep 60 & wait", 1), ([], "error", "no answer in 1 s"))
        self.expect(1, f"{'error':31}broken: what it printed", "--checker", "echo no JSON #")

    def test_a_program_is_asked_blind(self):
        self.make_all()
        (self.runs / "broken" / "rank_0.outcome.json").write_text("{}")
        [seen], *_ = self.ask("cd \"$1\"\nfiles=$(find . -type f | sort)\n"
                              "echo '{\"findings\": [{\"pitfall\": \"'$1 $files'\"}]}'")
        self.assertIn(" ./launcher.trace ./rank_0.trace ./rank_1.trace", seen["pitfall"])
        for telling in ("truth", "broken", "outcome"):
            self.assertNotIn(telling, seen["pitfall"])

    def test_pytorchs_own_means_stand_beside(self):
        self.make_all()
        file = self.top / "matrix.json"
        self.expect(0, "beside PyTorch's own means (PyTorch 2.", "--beside", MEASURED, "--json", file)
        result = json.loads(file.read_text())
        jsonschema.validate(result, json.loads((ROOT / "reports/schema/matrix.schema.json").read_text()))
        row = result["beside"]["pitfalls"]["no-initial-broadcast"]
        self.assertEqual((row["ours"], row["plain"]), ("exact", "silent"))
        self.assertEqual(result["beside"]["totals"]["plain"]["named"]["trials"], 1)
        for text, words in (("[]", "is not of type 'object'"), ("{}", "is a required property"), ("{", "")):
            (self.top / "table.json").write_text(text)
            self.expect(3, f"{self.top / 'table.json'}: ", "--beside", self.top / "table.json")
            self.expect(3, words, "--beside", self.top / "table.json")


class Beside(unittest.TestCase):
    """Over the three pitfalls that were asked of both."""

    @staticmethod
    def case(slug, **cells):
        return {"slug": slug, "cells": {name: dict(zip(("broken", "correct"), ({"verdict": word} for word in words)))
                                        for name, words in cells.items()}}

    @staticmethod
    def run_of(names, word):
        return {"kind": "fault" if names else "benign", "names": names, "verdict": word}

    def test_ours_is_the_worst_of_a_pitfalls_runs(self):
        measured = {"torch": "2", "backend": "gloo", "world_size": 2, "date": "2026-01-02",
                    "checkers": ["plain", "detail", "lockstep"], "cases": [
            self.case("a", plain=("silent", "clean"), detail=("error", "error")),
            self.case("b", plain=("named", "false alarm"), detail=("exact", "clean")),
            self.case("c", plain=("noticed", "clean"), detail=("skipped", "not triggered")),
            self.case("d", plain=("exact", "clean"), detail=("exact", "clean"))]}
        runs = [self.run_of(names, word) for names, word in (
            (["a"], "exact"), (["a"], "noticed"), (["b"], "named"), (["c"], "silent"), (["d"], "not applicable"),
            ([], "clean"), ([], "false alarm"))]
        found = recorded_runs.beside(runs, measured)
        self.assertEqual(found["source"], "PyTorch 2, gloo, 2 ranks, 2026-01-02")
        self.assertEqual(found["pitfalls"], {"a": {"ours": "noticed", "plain": "silent", "detail": "error"},
                                             "b": {"ours": "named", "plain": "named", "detail": "exact"},
                                             "c": {"ours": "silent", "plain": "noticed", "detail": None},
                                             "d": {"ours": None, "plain": "exact", "detail": "exact"}})
        shares = {name: [(one[key]["successes"], one[key]["trials"]) for key in ("named", "noticed", "false_alarms")]
                  for name, one in found["totals"].items()}
        self.assertEqual(shares, {"ours": [(1, 3), (2, 3), (1, 2)], "plain": [(1, 3), (2, 3), (1, 3)],
                                  "detail": [(1, 2), (1, 2), (0, 1)]})


if __name__ == "__main__":
    COURSE = sys.argv.pop(1)
    unittest.main(verbosity=1)
