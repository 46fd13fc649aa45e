"""The table: case x checker, as JSON (reports/schema/side_by_side.schema.json) and as Markdown."""

import datetime
import re

import rules
from scoring import share_text, totals

LONGEST = 200  # characters of evidence
PATH = re.compile(r"(?<![\w.])/(?:[\w.+-]+/)+")


def evidence(verdict):
    """Without this machine's folders."""
    text = PATH.sub("", verdict.evidence)
    return text if len(text) <= LONGEST else text[:LONGEST - 3] + "..."


def to_json(cases, seconds, traincheck):
    import torch
    checkers = list(cases[0]["cells"])
    theirs = [name for name in checkers if name != "lockstep"]
    column = {name: ([case["cells"][name]["broken"].word for case in cases],
                     [case["cells"][name]["correct"].word for case in cases]) for name in checkers}
    together = [rules.best([case["cells"][name]["broken"].word for name in theirs]) for case in cases]
    alarms = [any(case["cells"][name]["correct"].word == "false alarm" for name in theirs) for case in cases]
    column["together"] = together, ["false alarm" if alarm else "clean" for alarm in alarms]
    return {
        "schema_version": 2, "date": datetime.date.today().isoformat(), "torch": torch.__version__, "backend": "gloo",
        "world_size": 2, "seconds": seconds, "checkers": checkers,
        "cases": [{"slug": case["slug"], "family": case["family"], "proved": case["proved"], "together": best,
                   "cells": {name: {variant: {"verdict": each.word, "evidence": evidence(each)}
                                    for variant, each in variants.items()} for name, variants in case["cells"].items()}}
                  for case, best in zip(cases, together)],
        "totals": {name: totals([*((True, word) for word in broken), *((False, word) for word in correct)])
                   for name, (broken, correct) in column.items()},
        "traincheck": traincheck,
    }


def to_markdown(result):
    checkers = [*(name for name in result["checkers"] if name != "lockstep"), "together", "lockstep"]
    lines = ["| pitfall | " + " | ".join(checkers) + " |", "|---" * (len(checkers) + 1) + "|"]
    for case in result["cases"]:
        cells = {**{name: variants["broken"]["verdict"] for name, variants in case["cells"].items()},
                 "together": case["together"]}
        alarms = {name for name, variants in case["cells"].items() if variants["correct"]["verdict"] == "false alarm"}
        lines.append(f"| {case['slug']} | " + " | ".join(
            cells[name] + (" (!)" if name in alarms else "") for name in checkers) + " |")
    for label, key in (("exact", "exact"), ("named", "named"), ("noticed", "noticed"), ("false alarms", "false_alarms")):
        lines.append(f"| **{label}** | " + " | ".join(share_text(result["totals"][name][key]) for name in checkers) + " |")
    return "\n".join(lines) + "\n"
