"""Asks the oracles whether each case of a corpus is what its truth says. No trace is looked at, and no checker is asked.

usage: prove.py CORPUS [ID ...]

Runs each case as its case.json says, and its right program in the same way; evaluation/sets/edit_oracles.py, or the oracle
of the lesson's program, compares what came out. Cases from issue threads have no oracle and are passed over. The answers
go to CORPUS/proofs.json, which an interrupted run goes on with: a case whose truth does not hold there should not be
scored by. Exit codes: 0, 1 where a truth does not hold, 3 where CORPUS cannot be read.
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import types

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE / "contestants"), str(HERE.parent / "sets"), str(ROOT / "lessons" / "python")]
import contestant  # noqa: E402
import score  # noqa: E402
import torch  # noqa: E402
from edit_oracles import ORACLES  # noqa: E402
from truths import TRUTHS, is_proved, judged  # noqa: E402

DEADLINE_S = 90


def ran(case, folder, base, out):
    """What an oracle sees of a run: exit, and of each rank the weights and the report that it left."""
    try:
        done = contestant.call(contestant.words(case, out), folder, DEADLINE_S, TWIN_NOTES=str(out))
        code, error = done.returncode, next((line[:100] for line in done.stderr.splitlines() if "Error: " in line), "")
    except subprocess.TimeoutExpired:
        code, error = "no end", ""
    ranks = range(case["ranks"]) if code == 0 and (out / "rank_0.pt").exists() else ()
    return types.SimpleNamespace(name=base, code=code, error=error, weights=[torch.load(out / f"rank_{rank}.pt") for rank in ranks],
                                 reports=[json.loads((out / f"rank_{rank}.json").read_text()) for rank in ranks])


def right_folder(corpus, case, into):
    """The case's folder with the right program in it. It lies as deep as in a corpus, so that its command holds."""
    shutil.copytree(corpus / "cases" / case["id"], into / "cases" / case["id"])
    shutil.copy(corpus / "start.py", into)
    shutil.copy(corpus / "truths" / case["id"] / "right.py", into / "cases" / case["id"] / case["program"])
    return into / "cases" / case["id"]


def proof(corpus, truth):
    case = score.read(corpus / "cases" / truth["id"] / "case.json")
    with tempfile.TemporaryDirectory(prefix="lockstep-prove-") as name:
        folder = pathlib.Path(name)
        for what in ("own", "right"):
            (folder / what).mkdir()
        run = ran(case, corpus.resolve() / "cases" / truth["id"], truth["base"], folder / "own")
        if truth["oracle"] == "twin":
            seen = judged(truth["base"], 0 if run.code == 0 else 1, folder / "own")
            return {"holds": is_proved(truth["name"] if truth["name"] in TRUTHS else "", seen), "figures": seen}
        base = ran(case, right_folder(corpus, case, folder), truth["base"], folder / "right")
    if base.code != 0 or (run.code != 0 and truth["oracle"] != "fails"):
        return {"holds": False, "figures": {"right": [base.code, base.error], "case": [run.code, run.error]}}
    holds, figures = ORACLES[truth["oracle"]](base, run)
    return {"holds": bool(holds), "figures": figures}


def main(corpus, *ids):
    path = corpus / "proofs.json"
    truths = [score.read(one) for one in sorted((corpus / "truths").glob("*/truth.json"))]
    unknown = sorted(set(ids) - {truth["id"] for truth in truths})
    if unknown or not truths:
        raise score.FindingsError(f"{corpus} has no case {', '.join(unknown)}; name ids of its cases/, or none for all")
    proofs = score.read(path) if path.exists() else {}
    for truth in truths:
        if truth["oracle"] is None or (truth["id"] not in ids if ids else truth["id"] in proofs):
            continue
        proofs[truth["id"]] = one = proof(corpus, truth)
        path.write_text(json.dumps(proofs, indent=1) + "\n", encoding="utf-8")
        print(f"{'ok' if one['holds'] else 'NOT'} {truth['id']} {truth['name']}: {truth['oracle']} {one['figures']}", flush=True)
    wrong = [case for case, one in proofs.items() if not one["holds"]]
    print(f"{len(proofs) - len(wrong)} of {len(proofs)} truths hold")
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    try:
        sys.exit(main(pathlib.Path(sys.argv[1]), *sys.argv[2:]))
    except (score.FindingsError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(3)
