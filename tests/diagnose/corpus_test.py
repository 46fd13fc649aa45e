"""The corpus for authors of other checkers: corpus_test.py BIN COURSE, the lessons' programs and lockstep-course."""

import hashlib
import json
import pathlib
import shlex
import subprocess
import sys
import tarfile
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAKE = ROOT / "reports" / "corpus" / "make.py"
BIN, COURSE = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
VARIANTS = {"05_set_epoch": "missing-set-epoch", "16_metrics": "near-miss-reduced-after-backward",
         "18_elastic_restart": "restart-without-resume"}


MATRIX = (sys.executable, ROOT / "evaluation" / "recorded_runs.py", "--course", COURSE)


def run(*command):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=100)


class Corpus(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="lockstep-corpus-")
        cls.addClassCleanup(cls.folder.cleanup)
        cls.top = pathlib.Path(cls.folder.name)
        cls.runs = cls.top / "runs"
        cls.runs.mkdir()
        for lesson, variant in VARIANTS.items():
            done = run(BIN / lesson, "--variant", variant, "--world-size", 2, "--trace", cls.runs,
                       "--json", cls.runs / f"{lesson}.json")
            assert done.returncode == 0, done.stderr
        cls.archive = cls.top / "corpus.tar.xz"
        cls.made = run(sys.executable, MAKE, cls.archive, cls.runs)
        assert cls.made.returncode == 0, cls.made.stderr
        with tarfile.open(cls.archive) as tar:
            tar.extractall(cls.top)
        cls.corpus = cls.top / "lockstep-corpus-2"

    def scored(self, folder, *options, code=0):
        file = self.top / "scored.json"
        done = run(*MATRIX, folder, "--json", file, *options)
        self.assertEqual(done.returncode, code, done.stderr)
        return {each["name"]: each for each in json.loads(file.read_text(encoding="utf-8"))["runs"]}

    def test_scores_the_same_when_unpacked(self):
        before = self.scored(self.runs)
        self.assertEqual(self.scored(self.corpus), before)
        self.assertEqual(sorted(each["verdict"] for each in before.values()), ["clean", "exact", "exact"])

    def test_holds_labels_verdicts_and_traces_alone(self):
        manifest = json.loads((self.corpus / "manifest.json").read_text(encoding="utf-8"))
        self.assertEqual((manifest["corpus_version"], manifest["trace_version"]), (2, 1))
        self.assertEqual({tuple(case["names"]) for case in manifest["cases"]},
                         {("missing-set-epoch",), ("restart-without-resume",), ()})
        for case in manifest["cases"]:
            folder = self.corpus / case["folder"]
            names = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
            attempts = ["attempt_0/", "attempt_1/"] if "elastic" in case["name"] else [""]
            self.assertEqual(names, {"truth.json", "oracle.json"} | {
                attempt + name for attempt in attempts for name in ("rank_0.trace", "rank_1.trace", "launcher.trace")})
            oracle = json.loads((folder / "oracle.json").read_text(encoding="utf-8"))["oracles"][0]
            self.assertEqual(oracle["manifested"], bool(case["names"]))
        # The rank that was killed left a longer file than its records take.
        for file in self.corpus.rglob("*.trace"):
            data = file.read_bytes()
            self.assertEqual(len(data), int.from_bytes(data[64:72], "little"), file)

    def test_checksums_are_of_every_file(self):
        lines = (self.corpus / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
        sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
        files = {str(file.relative_to(self.corpus)) for file in self.corpus.rglob("*") if file.is_file()}
        self.assertEqual(set(sums), files - {"SHA256SUMS"})
        for name, digest in sums.items():
            self.assertEqual(hashlib.sha256((self.corpus / name).read_bytes()).hexdigest(), digest, name)

    def test_is_the_same_from_the_same_runs(self):
        again = self.top / "again.tar.xz"
        self.assertEqual(run(sys.executable, MAKE, again, self.runs).returncode, 0)
        self.assertEqual(again.read_bytes(), self.archive.read_bytes())

    def test_the_example_checker_names_its_pitfall(self):
        command = shlex.join([sys.executable, str(self.corpus / "example_checker.py")])
        words = {tuple(each["names"]): each["verdict"] for each in self.scored(self.corpus, "--checker", command, code=1).values()}
        self.assertEqual(words, {("missing-set-epoch",): "exact", ("restart-without-resume",): "silent", (): "clean"})

    def test_says_what_is_wrong(self):
        for spoil, words in ((lambda: None, "no truth.json"),
                             (lambda: (empty / "a").mkdir() or (empty / "a" / "truth.json").write_text("{"), "error: "),):
            with tempfile.TemporaryDirectory() as folder:
                empty = pathlib.Path(folder)
                spoil()
                done = run(sys.executable, MAKE, empty / "x.tar.xz", empty)
                self.assertEqual(done.returncode, 3)
                self.assertIn(words, done.stderr)
                self.assertFalse((empty / "x.tar.xz").exists())
        self.assertEqual(run(sys.executable, MAKE).returncode, 2)

    def test_levels_are_for_our_own_detectors(self):
        done = run(*MATRIX, self.corpus, "--checker", "true", "--level", 1)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--level is for our own detectors", done.stderr)
        self.assertEqual({each["verdict"] for each in self.scored(self.corpus, "--level", 1).values()},
                         {"not applicable", "clean"})


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
