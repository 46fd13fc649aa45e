"""`lockstep diagnose` on real flight-recorder dumps, side by side with PyTorch's fr_trace on the same ones.

usage: dump_test.py PROGRAM      (PROGRAM is the built lockstep-course)

flight_job.py makes the dumps, on Gloo. fr_trace does not read those, so they are also relabelled: NCCL's names
of the operations, and the groups' configuration filled in. It must be as right as fr_trace on every one of
them that fr_trace is right on, and right where it is not.
"""

import json
import os
import pathlib
import pickle
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "parity"))
import ranks  # noqa: E402

PROGRAM = None  # set by ranks.main
WORLD = 4
GROUPS = {"0": ("default_pg", [0, 1, 2, 3]), "1": ("undefined", [1, 3])}
DEADLINE_S = 180
PREFIX = "nccl_trace_rank_"

# What each job did: pitfall, ranks, sequence. Nothing: healthy.
TRUTH = {
    "healthy": None,
    "missing": ("no-progress", [1], 5),
    "missing_first": ("no-progress", [0], 5),
    "two_missing": ("no-progress", [1, 3], 5),
    "order": ("collective-mismatch", [2], 5),
    "sizes": ("shape-mismatch", [2], 5),
    "dtype": ("dtype-mismatch", [2], 5),
    "cut": None,
    "cut_missing": ("no-progress", [1], 11),
}
SUBGROUP = "subgroup"  # 1 waits for 3 in a group of their own, the others for both
WHOLE = [case for case in TRUTH if not case.startswith("cut")]


def call(*arguments):
    return subprocess.run([PROGRAM, "diagnose", *map(str, arguments)], capture_output=True, text=True, timeout=30,
                          stdin=subprocess.DEVNULL)


def findings_of(test, folder, *options):
    """Findings, notes and ranks without a dump; the exit code must fit, and the text for people must say the same."""
    result = call(folder, "--json", *options)
    test.assertIn(result.returncode, (0, 1, 3), result.stderr)
    said = json.loads(result.stdout)
    test.assertEqual(result.returncode, 1 if said["findings"] else 3 if said["missing_ranks"] else 0, said)
    text = call(folder, *options)
    test.assertEqual(text.returncode, result.returncode)
    for finding in said["findings"]:
        test.assertIn(finding["pitfall"], text.stdout)
    test.assertEqual("Nothing found" in text.stdout, not said["findings"])
    test.assertLessEqual(max(map(len, text.stdout.splitlines())), 120)  # only a path may be longer than 80
    return said["findings"], said["notes"], said["missing_ranks"]


def short(finding):
    return finding["pitfall"], finding["ranks"], finding["sequence"]


def relabelled(dump):
    """As NCCL's recorder would have written it."""
    names = {entry["process_group"][0] for entry in dump["entries"]}
    dump["pg_config"] = {name: {"name": name, "desc": GROUPS[name][0], "ranks": str(GROUPS[name][1])}
                         for name in sorted(names | {"0"})}
    for entry in dump["entries"]:
        entry["profiling_name"] = entry["profiling_name"].replace("gloo:", "nccl:")
    return dump


def verdict_of_fr_trace(result):
    """Its first report, in our words; "failed" where it ended with an error."""
    text = result["output"]
    if result["code"] != 0:
        return "failed"
    missing = re.search(r"Not all ranks joining collective, sequence number: (\d+).*?missing ranks: \{([\d, ]+)\}",
                        text, re.DOTALL)
    wrong = re.search(r"Collective sequence number: (\d+) has errors.*?error msg: (.*?)\n", text, re.DOTALL)
    if missing and not (wrong and wrong.start() < missing.start()):
        return "no-progress", sorted(map(int, missing[2].split(","))), int(missing[1])
    if wrong:
        kinds = {"COLLECTIVE_TYPE_MISMATCH": "collective-mismatch", "SIZE_OR_SYNTAX_MISMATCH": "shape-mismatch",
                 "COLLECTIVE_DTYPE_MISMATCH": "dtype-mismatch"}
        culprits = re.findall(r"Culprit rank (\d+); Error type: (\w+)", wrong[2])
        return kinds[culprits[0][1]], sorted(int(rank) for rank, _ in culprits), int(wrong[1])
    return None


class FlightDumps(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-flight-")
        cls.addClassCleanup(folder.cleanup)
        cls.root = pathlib.Path(folder.name)
        made = cls.root / "made"
        made.mkdir()
        with ranks.Ranks(DEADLINE_S / 2) as job:
            job.start([sys.executable, str(HERE / "flight_job.py"), str(made), *TRUTH, SUBGROUP])
            job.wait()
        for case in (*TRUTH, SUBGROUP):
            for kind in ("gloo", "gloo_json", "nccl", "nccl_json"):
                (cls.root / kind / case).mkdir(parents=True)
            for rank in range(WORLD):
                name = f"{PREFIX}{rank}"
                shutil.copy(made / case / f"rank_{rank}", cls.root / "gloo" / case / name)
                shutil.copy(made / case / f"rank_{rank}.json", cls.root / "gloo_json" / case / name)
                dump = relabelled(pickle.loads((made / case / f"rank_{rank}").read_bytes()))
                (cls.root / "nccl" / case / name).write_bytes(pickle.dumps(dump, protocol=2))
                text = json.dumps(relabelled(json.loads((made / case / f"rank_{rank}.json").read_text())))
                (cls.root / "nccl_json" / case / f"{name}.json").write_text(text)
        cls.without_dump = {}
        for case, gone in (("missing", 3), ("healthy", 2)):
            cls.without_dump[case] = shutil.copytree(cls.root / "nccl" / case, cls.root / f"without_dump_{case}")
            (cls.without_dump[case] / f"{PREFIX}{gone}").unlink()
        runs = {("nccl", case): [cls.root / "nccl" / case] for case in (*TRUTH, SUBGROUP)}
        runs |= {("gloo", case): [cls.root / "gloo" / case] for case in ("healthy", "missing", "two_missing", "order")}
        for case, place in cls.without_dump.items():
            runs["without", case] = [place]
            runs["incomplete", case] = [place, "--allow-incomplete-ranks"]
        out = {key: cls.root / ("fr_trace_" + "_".join(key)) for key in runs}
        with ranks.Ranks(DEADLINE_S / 2) as job:
            job.start([sys.executable, str(HERE / "fr_trace_runs.py"),
                       *(json.dumps([str(out[key]), "-p", PREFIX, *map(str, rest)]) for key, rest in runs.items())])
            job.wait()
        cls.fr_trace = {key: json.loads(path.read_text()) for key, path in out.items()}

    def assert_truth(self, case, folder):
        found, notes, missing = findings_of(self, folder)
        self.assertEqual(missing, [])
        self.assertEqual([short(finding) for finding in found], [TRUTH[case]] if TRUTH[case] else [], folder)
        return found, notes

    def test_whole_dumps_in_nccl_format_match_fr_trace(self):
        for case in WHOLE:
            with self.subTest(case):
                found, notes = self.assert_truth(case, self.root / "nccl" / case)
                self.assertEqual(notes, [])
                theirs = verdict_of_fr_trace(self.fr_trace["nccl", case])
                self.assertEqual(theirs, short(found[0]) if found else None, self.fr_trace["nccl", case])

    def test_json_says_the_same(self):
        for kind in ("nccl_json", "gloo_json"):
            for case in TRUTH:
                with self.subTest(kind=kind, case=case):
                    self.assert_truth(case, self.root / kind / case)

    def test_gloo_where_fr_trace_fails(self):
        for case in TRUTH:
            with self.subTest(case):
                self.assert_truth(case, self.root / "gloo" / case)
        for (kind, case), result in self.fr_trace.items():
            if kind == "gloo":
                self.assertEqual(verdict_of_fr_trace(result), "failed", case)
                self.assertIn("KeyError", result["output"])

    def test_the_call_site_is_the_jobs(self):
        found, *_ = findings_of(self, self.root / "gloo" / "order")
        self.assertRegex(found[0]["evidence"],
                         r"rank 2 called broadcast \[\[3\]\] Float \(broadcast at .*flight_job.py:\d+\)")

    def test_a_full_buffer_where_fr_trace_is_wrong(self):
        for case in ("cut", "cut_missing"):
            _, notes = self.assert_truth(case, self.root / "nccl" / case)
            self.assertEqual(len(notes), 1, notes)
            self.assertIn("has overwritten its oldest calls", notes[0])
        # It lines the ranks up by record, and ranks 1 and 3 have recorded more: it accuses the other two.
        for case in ("cut", "cut_missing"):
            theirs = verdict_of_fr_trace(self.fr_trace["nccl", case])
            self.assertEqual(theirs, ("no-progress", [0, 2], 8), self.fr_trace["nccl", case])

    def test_a_subgroup(self):
        found, *_ = findings_of(self, self.root / "nccl" / SUBGROUP)
        self.assertEqual([short(f) for f in found], [("no-progress", [3], 1), ("no-progress", [1, 3], 5)])
        self.assertTrue(found[0]["evidence"].startswith("in group 1: "), found)
        self.assertTrue(found[1]["evidence"].startswith("in group 0 (default_pg): "), found)
        self.assertIn("Meanwhile rank 1 waits in group 1, which is told of apart", found[1]["evidence"])
        found, notes, _ = findings_of(self, self.root / "gloo" / SUBGROUP)  # members unknown, and said so
        self.assertEqual([short(f) for f in found], [("no-progress", [1, 3], 5)])
        self.assertIn("The newest call of rank 1 is in group 1", found[0]["evidence"])
        self.assertIn("do not say who belongs to a group", " ".join(notes))

    def test_a_rank_without_a_dump(self):
        found, _, missing = findings_of(self, self.without_dump["missing"])
        self.assertEqual(([short(f) for f in found], missing), ([("no-progress", [1], 5)], [3]))
        found, notes, missing = findings_of(self, self.without_dump["healthy"])
        self.assertEqual((found, missing), ([], [2]))
        self.assertIn("ranks 0, 1 and 3 agree up to sequence 5, all_reduce", " ".join(notes))
        for case in self.without_dump:
            self.assertEqual(verdict_of_fr_trace(self.fr_trace["without", case]), "failed")
            self.assertNotIn("missing ranks: {1}", self.fr_trace["incomplete", case]["output"])

    def test_no_dump_of_the_last_gloo_rank(self):
        place = shutil.copytree(self.root / "gloo" / "missing", self.root / "last_missing")
        (place / f"{PREFIX}3").unlink()
        found, _, missing = findings_of(self, place)  # how many ranks there are is in the shapes of an all_gather
        self.assertEqual(([short(f) for f in found], missing), ([("no-progress", [1], 5)], [3]))

    def assert_unreadable(self, folder, *texts):
        result = call(folder)
        self.assertEqual((result.returncode, result.stdout), (3, ""), result.stderr)
        self.assertEqual(result.stderr.count("error:"), 1)
        said = " ".join(result.stderr.split())  # lines of 80 columns may break a path at a space
        for text in texts:
            self.assertIn(text, said)

    def test_a_file_cut_off(self):
        for kind, name in (("gloo", f"{PREFIX}2"), ("nccl_json", f"{PREFIX}2.json")):
            place = shutil.copytree(self.root / kind / "missing", self.root / f"torn_{kind}")
            whole = (place / name).read_bytes()
            for size in sorted({0, 1, 2, len(whole) - 1, *range(3, len(whole), len(whole) // 15)}):
                (place / name).write_bytes(whole[:size])
                self.assert_unreadable(place, str(place / name), "empty" if size == 0 else "byte")

    def test_what_would_be_called_is_refused_by_name(self):
        place = shutil.copytree(self.root / "nccl" / "missing", self.root / "hostile")
        witness = self.root / "witness"

        class Hostile:
            def __reduce__(self):
                return os.system, (f"touch {shlex.quote(str(witness))}",)

        for hostile in (Hostile(), {"version": "2.10", "pg_config": {}, "entries": [Hostile()]}):
            (place / f"{PREFIX}1").write_bytes(pickle.dumps(hostile, protocol=2))
            self.assert_unreadable(place, str(place / f"{PREFIX}1"), "posix.system")
        self.assertFalse(witness.exists())
        pickle.loads((place / f"{PREFIX}1").read_bytes())  # it would have
        self.assertTrue(witness.exists())

    def test_wrong_use(self):
        for arguments, text in (((self.root / "gloo" / "healthy", self.root / "gloo" / "missing"), "one folder"),
                                ((self.root / "gloo" / "healthy", "--no-such-option"), "--no-such-option")):
            result = call(*arguments)
            self.assertEqual((result.returncode, result.stdout), (2, ""))
            self.assertIn(text, result.stderr)
        self.assert_unreadable(self.root, "rank_<number>.trace")  # a folder of neither
        both = shutil.copytree(self.root / "gloo" / "missing", self.root / "both")
        shutil.copy(both / f"{PREFIX}0", both / "other_0")
        self.assertEqual(call(both).returncode, 1)
        result = call(both, "--dump-prefix", "other_", "--json")
        self.assertEqual((result.returncode, json.loads(result.stdout)["missing_ranks"]), (3, [1, 2, 3]))
        self.assertEqual(call(both, "--prefix", "absent_").returncode, 3)


if __name__ == "__main__":
    ranks.main()
