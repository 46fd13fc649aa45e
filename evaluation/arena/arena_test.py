"""The corpus, its scores and what refuses bad input. No contestant runs a job here: table_test.py does that.

usage: arena_test.py      (skipped with 77 where this Python has no jsonschema)
"""

import functools
import hashlib
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True
import corpus  # noqa: E402
import edits  # noqa: E402
import score  # noqa: E402
import table  # noqa: E402

DEADLINE_S = 60
FAULTS, BENIGN = 6, 3


def call(script, *arguments):
    return subprocess.run([sys.executable, "-B", str(script), *map(str, arguments)], capture_output=True, text=True,
                          timeout=DEADLINE_S, stdin=subprocess.DEVNULL)


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@functools.cache
def public_cases():
    return corpus.public()


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-arena-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)


class Corpus(InFolder):
    def test_a_seed_makes_the_same_bytes_and_another_seed_others(self):
        for name, seed in (("one", 7), ("again", 7), ("other", 8)):
            done = call(HERE / "corpus.py", self.folder / name, "--seed", seed, "--faults", FAULTS, "--benign", BENIGN)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
        one, again, other = (contents(self.folder / name) for name in ("one", "again", "other"))
        self.assertEqual(one, again)
        cases = [path for path in one if path.endswith("/train.py")]
        self.assertEqual(len(cases), FAULTS + BENIGN)
        self.assertFalse(set(cases) & set(other))
        for line in one["SHA256SUMS"].decode().splitlines():
            digest, path = line.split("  ")
            self.assertEqual(hashlib.sha256(one[path]).hexdigest(), digest)

    def test_the_public_split_is_what_its_sources_hold(self):
        cases = public_cases()
        self.assertEqual(len({case.id for case in cases}), len(cases))
        files = corpus.files_of(cases, "public")
        self.assertEqual(files, corpus.files_of(corpus.public(), "public"))
        of = corpus.counts(cases)
        self.assertEqual(of["changes"]["faults"] + of["changes"]["benign"], sum(len(edits) for edits in corpus.changes().values()))
        self.assertEqual(of["lessons"], {"programs": len({truth["program"] for truth in corpus.TRUTHS.values()}),
                                         "faults": len(corpus.TRUTHS), "benign": of["lessons"]["programs"]})
        import jsonschema
        schema = json.loads((HERE.parents[1] / "reports" / "schema" / "truth.schema.json").read_text(encoding="utf-8"))
        for case in cases:
            jsonschema.validate(case.truth, schema, jsonschema.Draft202012Validator)
            compile(case.program, case.truth["name"], "exec")
            self.assertNotIn("fault(", case.program)
            if case.truth["kind"] == "fault" and case.right:
                self.assertNotEqual(case.program, case.right)

    def test_what_a_checker_sees_tells_no_truth(self):
        files = corpus.files_of(public_cases(), "public")
        described = [json.loads(data) for path, data in files.items() if path.endswith("/case.json")]
        self.assertEqual({tuple(sorted(one)) for one in described},
                         {("attempts", "command", "id", "nodes", "program", "ranks", "schema_version")})
        slugs = {name for case in public_cases() for name in case.truth.get("names", [])}
        for one in described:
            self.assertFalse(slugs & set(" ".join(one["command"]).split()))

    def test_a_folder_that_holds_something_is_left_alone(self):
        (self.folder / "mine").write_text("mine")
        done = call(HERE / "corpus.py", self.folder, "--seed", 1)
        self.assertEqual(done.returncode, 3)
        self.assertIn(f"{self.folder} is there already; name a new or empty folder", done.stderr)
        self.assertEqual(contents(self.folder), {"mine": b"mine"})

    def test_changes_that_do_not_fit_are_refused(self):
        with self.assertRaisesRegex(edits.EditError, "e: 2 places have 'a', not one"):
            edits.applied("a a", {"name": "e", "edits": [{"was": "a", "is": "b"}]})


class Score(InFolder):
    """Of a small corpus, and findings made by hand."""

    def setUp(self):
        super().setUp()
        self.corpus = self.folder / "corpus"
        corpus.write(self.corpus, corpus.files_of(corpus.hidden(3, FAULTS, BENIGN), "seed 3"))
        self.truths = {truth["id"]: truth for truth in (score.read(path) for path in self.corpus.glob("truths/*/truth.json"))}

    def enter(self, name, said, state="answered", reason=""):
        for case in self.truths:
            path = self.folder / "findings" / name / f"{case}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"schema_version": 1, "case": case, "contestant": name, "state": state, "reason": reason,
                                        "findings": said(self.truths[case])}))

    def rows(self):
        return score.score(self.corpus, self.folder / "findings")["contestants"]

    @staticmethod
    def finding(**more):
        return {"kind": "violation", "pitfall": None, "text": "", "ranks": [], "step": None, "tensor": None, "source": None, **more}

    def share(self, row, word, of="all"):
        return row["faults"][of][word]["successes"]

    def test_nothing_scores_0_and_the_truth_1(self):
        for truth in self.truths.values():
            truth["names"] = truth.get("names") or ["its-name"]  # a fault that no pitfall names can be named by nobody
            (self.corpus / "truths" / truth["id"] / "truth.json").write_text(json.dumps(truth))
        self.enter("nothing", lambda truth: [])
        self.enter("perfect", lambda truth: [self.finding(pitfall=truth["names"][0])] if truth["kind"] == "fault" else [])
        rows = self.rows()
        self.assertEqual(self.share(rows["nothing"], "silent"), FAULTS)
        self.assertEqual(self.share(rows["nothing"], "named"), 0)
        named = rows["perfect"]["faults"]["all"]["named"]
        self.assertEqual((named["value"], named["high"]), (1.0, 1.0))
        self.assertAlmostEqual(named["low"], 0.6097, places=4)  # Wilson's of 6 of 6: 1 / (1 + z^2 / 6)
        for row in rows.values():
            self.assertEqual((row["false alarms"]["successes"], row["false alarms"]["trials"]), (0, BENIGN))

    def test_an_alarm_on_everything_is_counted(self):
        self.enter("shouts", lambda truth: [self.finding(text="something", ranks=[0])])
        self.enter("advises", lambda truth: [self.finding(kind="advice")])
        rows = self.rows()
        self.assertEqual(rows["shouts"]["false alarms"]["value"], 1.0)
        self.assertEqual(rows["advises"]["false alarms"]["value"], 0.0)
        self.assertEqual(self.share(rows["advises"], "silent"), FAULTS)

    def test_a_name_counts_whatever_the_ranks(self):
        said = {"state": "answered", "findings": [self.finding(text="RuntimeError: Shapes differ", ranks=[0])]}
        truth = {"kind": "fault", "names": ["a"], "words": ["shapes differ"], "ranks": "all", "step": 4}
        self.assertEqual(score.said_of(truth, 3, said), "named")
        self.assertEqual(score.said_of({**truth, "words": []}, 3, said), "noticed")
        right = self.finding(pitfall="a", ranks=[0, 1, 2], step=4)
        self.assertEqual(score.said_of(truth, 3, {"state": "answered", "findings": [right]}), "named")  # and exactly, too
        self.assertEqual(score.said_of(truth, 3, {"state": "error", "findings": []}), "error")

    def test_a_checker_that_fails_or_is_not_run_is_no_zero(self):
        self.enter("fails", lambda truth: [], "error", "it crashed")
        self.enter("absent", lambda truth: [], "not run", "it is not installed")
        rows = self.rows()
        self.assertEqual((rows["fails"]["errors"], rows["fails"]["false alarms"]["trials"]), (FAULTS + BENIGN, 0))
        self.assertEqual(self.share(rows["fails"], "silent"), FAULTS)
        self.assertEqual(rows["absent"], {"name": "absent", "state": "not run", "reason": "it is not installed"})
        self.assertIn("absent: not run: it is not installed", score.in_words({"contestants": rows}))

    def test_a_case_whose_truth_does_not_hold_is_left_out(self):
        fault = next(case for case, truth in self.truths.items() if truth["kind"] == "fault")
        (self.corpus / "proofs.json").write_text(json.dumps({case: {"holds": case != fault} for case in self.truths}))
        self.enter("nothing", lambda truth: [])
        self.assertEqual(self.rows()["nothing"]["faults"]["all"]["silent"]["trials"], FAULTS - 1)

    def refused(self, change):
        """What score.py says where one file of a contestant is changed."""
        self.enter("one", lambda truth: [self.finding()])
        path = min((self.folder / "findings" / "one").iterdir())
        change(path)
        done = call(self.corpus / "score.py", self.corpus, self.folder / "findings")  # the corpus's own
        self.assertEqual((done.returncode, done.stdout), (3, ""))
        self.assertTrue(done.stderr.startswith("error: "), done.stderr)
        return path, done.stderr

    def changed(self, **more):
        def change(path):
            path.write_text(json.dumps({**json.loads(path.read_text()), **more}))
        return change

    def test_bad_findings_are_refused_with_what_where_and_what_to_do(self):
        for change, words in ((lambda path: path.write_text("{"), "no JSON"),
                              (self.changed(state="perhaps"), "$.state: 'perhaps' is not one of"),
                              (self.changed(state="error"), "$.reason"),
                              (self.changed(findings=[self.finding(ranks=["0"])]), "$.findings[0].ranks[0]: '0' is not of type"),
                              (self.changed(findings=[{"kind": "violation"}]), "'pitfall' is a required property")):
            path, said = self.refused(change)
            self.assertIn(str(path), said)
            self.assertIn(words, said)
            self.assertIn("findings.schema.json", said)
        path, said = self.refused(self.changed(findings=[self.finding(ranks=[9])]))
        self.assertIn(f"{path}: rank 9, and the case has", said)
        path, said = self.refused(self.changed(case="0" * 10))
        self.assertIn(f"{path} is about the case {'0' * 10}", said)

    def test_contestants_must_have_the_same_cases(self):
        self.enter("two", lambda truth: [])
        path, said = self.refused(lambda path: path.unlink())
        self.assertIn(f"{path.parent} has no {path.name}; all contestants must be given the same cases", said)

    def test_a_sample_is_drawn_by_its_seed(self):
        one = table.sample(self.corpus, 2, 1, 0)
        self.assertEqual(one, table.sample(self.corpus, 2, 1, 0))
        self.assertEqual(sorted(self.truths[case]["kind"] for case in one), ["benign", "fault", "fault"])
        with self.assertRaisesRegex(score.FindingsError, f"has {FAULTS} faults and {BENIGN} benign cases, not 99 and 0"):
            table.sample(self.corpus, 99, 0, 0)


if __name__ == "__main__":
    if importlib.util.find_spec("jsonschema") is None:
        print("skipped: this Python has no jsonschema")
        sys.exit(77)
    unittest.main(verbosity=2)
