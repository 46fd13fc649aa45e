"""Scores what contestants said of the cases of a corpus.

usage: python3 score.py CORPUS FINDINGS [--json FILE]

FINDINGS has a folder for each contestant, and in it a file CASE.json (findings.schema.json) for each case that it was
given, which must be the same for all. scoring.py, in a corpus beside this file, says what the verdicts mean. A name counts
whatever the ranks and the step. A checker that failed was silent about a fault; on a benign case that counts for nothing. A
case whose truth does not hold (CORPUS/proofs.json, where prove.py has made it) is left out. Needs the packages jsonschema
and statsmodels. Exit codes: 0, 2 usage, 3 findings that cannot be scored.
"""

import argparse
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))  # in a corpus it is beside this file
from scoring import FAULT, ScoreError, Truth, share, share_text, verdict  # noqa: E402

SAID = FAULT[1:]  # of a fault; a checker need not be exact


class FindingsError(ScoreError):
    pass


def read(path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FindingsError(f"{path} is not there; CORPUS is what corpus.py made, FINDINGS has CONTESTANT/CASE.json") from None
    except ValueError as error:
        raise FindingsError(f"{path}: no JSON: {error}; write it as findings.schema.json says") from None


def validator():
    try:
        import jsonschema
    except ImportError:
        raise FindingsError("this Python has no jsonschema; pip install jsonschema") from None
    return jsonschema.Draft202012Validator(read(HERE / "findings.schema.json"))


def checked(path, schema, case, ranks):
    """What a contestant said of a case, where it is what the schema says, and of this case."""
    said = read(path)
    for error in schema.iter_errors(said):
        raise FindingsError(f"{path}: {error.json_path}: {error.message}; write it as findings.schema.json says")
    if said["case"] != case:
        raise FindingsError(f"{path} is about the case {said['case']}; name the file as the case that it is about")
    for finding in said["findings"]:
        if beyond := [rank for rank in finding["ranks"] if rank >= ranks]:
            raise FindingsError(f"{path}: rank {beyond[0]}, and the case has {ranks} ranks; count ranks from 0 on")
    return said


def said_of(truth, ranks, said):
    if said["state"] == "error":
        return "error"
    word = verdict(Truth.of(truth, ranks), [{**one, "severity": one["kind"]} for one in said["findings"]])
    return "named" if word == "exact" else word


def totals(cases):
    """Of a contestant's [(truth, verdict)]: each verdict's share, in all and by class, and false alarms."""
    faults = [(truth["class"], "silent" if word == "error" else word) for truth, word in cases if truth["kind"] == "fault"]
    benign = [word for truth, word in cases if truth["kind"] == "benign" and word != "error"]
    classes = {"all": faults, **{name: [one for one in faults if one[0] == name] for name in sorted({name for name, _ in faults})}}
    return {"faults": {name: {word: share([said for _, said in of].count(word), len(of)) for word in SAID}
                       for name, of in classes.items()},
            "false alarms": share(benign.count("false alarm"), len(benign)),
            "errors": sum(word == "error" for _, word in cases)}


def score_one(corpus, folder, schema, ids):
    """(its row, {case: verdict}) of a contestant."""
    said, truths, ranks = {}, {}, {}
    for case in ids:
        truths[case] = read(corpus / "truths" / case / "truth.json")
        ranks[case] = read(corpus / "cases" / case / "case.json")["ranks"]
        said[case] = checked(folder / f"{case}.json", schema, case, ranks[case])
    name = said[ids[0]]["contestant"]
    not_run = {one["reason"] for one in said.values() if one["state"] == "not run"}
    if not_run:
        return {"name": name, "state": "not run", "reason": min(not_run)}, {}
    words = {case: said_of(truths[case], ranks[case], said[case]) for case in ids}
    row = totals([(truths[case], word) for case, word in words.items()])
    return {"name": name, "state": "run", "reason": "", **row}, words


def given(findings, names, ids):
    """(contestants, cases): those that are asked for, or all that there are, where each has an answer on each."""
    names = names or sorted(path.name for path in findings.iterdir() if path.is_dir()) if findings.is_dir() else names
    if not names:
        raise FindingsError(f"{findings} has no folder of a contestant; name the folder that holds CONTESTANT/CASE.json")
    answered = {name: {path.stem for path in (findings / name).glob("*.json")} for name in names}
    ids = ids or sorted(set().union(*answered.values()))
    for name, own in answered.items():
        missing = sorted(set(ids) - own) or ([] if ids else ["CASE"])
        if missing:
            raise FindingsError(f"{findings / name} has no {missing[0]}.json; all contestants must be given the same cases: run it "
                                "on this one, too")
    return names, ids


def score(corpus, findings, names=None, ids=None):
    """{contestants: {name: row}, cases: {id: {its truth's name, contestant: verdict}}}"""
    names, ids = given(findings, names, ids)
    proofs = read(corpus / "proofs.json") if (corpus / "proofs.json").exists() else {}
    left_out = [case for case in ids if not proofs.get(case, {"holds": True})["holds"]]
    ids = [case for case in ids if case not in left_out]
    schema, rows, cases = validator(), {}, {case: {} for case in ids}
    for name in names:
        rows[name], words = score_one(corpus, findings / name, schema, ids)
        for case, word in words.items():
            cases[case][name] = word
    truths = {case: read(corpus / "truths" / case / "truth.json") for case in ids}
    return {"contestants": rows, "left_out": left_out,
            "cases": {case: {"name": truths[case]["name"], "class": truths[case]["class"], "verdicts": words}
                      for case, words in cases.items()}}


def in_words(result):
    lines = []
    for name, row in result["contestants"].items():
        if row["state"] == "not run":
            lines.append(f"{name}: not run: {row['reason']}")
            continue
        lines.append(f"{name}: false alarms {share_text(row['false alarms'])}; failed on {row['errors']}")
        lines += [f"  {of}: " + ", ".join(f"{word} {share_text(one)}" for word, one in shares.items())
                  for of, shares in row["faults"].items()]
    return "\n".join(lines)


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("findings", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args(arguments)
    try:
        result = score(options.corpus, options.findings)
        if options.json:
            options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    except (ScoreError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    print(in_words(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
