"""The table: case x checker, as JSON (reports/schema/side_by_side.schema.json) and as Markdown."""

import datetime
import re

import rules

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
    column = {name: ([case["cells"][name]["broken"].cell for case in cases],
                     [case["cells"][name]["correct"].cell for case in cases]) for name in checkers}
    together = [rules.best([case["cells"][name]["broken"].cell for name in theirs]) for case in cases]
    alarms = [any(case["cells"][name]["correct"].cell == "false-alarm" for name in theirs) for case in cases]
    return {
        "schema_version": 1, "date": datetime.date.today().isoformat(), "torch": torch.__version__, "backend": "gloo",
        "world_size": 2, "seconds": seconds, "checkers": checkers,
        "cases": [{"slug": case["slug"], "family": case["family"], "proved": case["proved"], "together": best,
                   "cells": {name: {variant: {"cell": each.cell, "evidence": evidence(each)}
                                    for variant, each in variants.items()} for name, variants in case["cells"].items()}}
                  for case, best in zip(cases, together)],
        "totals": {**{name: rules.totals(*cells) for name, cells in column.items()},
                   "together": rules.totals(together, ["false-alarm" if alarm else "clean" for alarm in alarms])},
        "traincheck": traincheck,
    }


def share(one):
    if not one["trials"]:
        return "-"
    return f"{one['successes']} of {one['trials']} [{one['low']:.2f}, {one['high']:.2f}]"


def to_markdown(result):
    checkers = [*(name for name in result["checkers"] if name != "lockstep"), "together", "lockstep"]
    lines = ["| pitfall | " + " | ".join(checkers) + " |", "|---" * (len(checkers) + 1) + "|"]
    for case in result["cases"]:
        cells = {**{name: variants["broken"]["cell"] for name, variants in case["cells"].items()},
                 "together": case["together"]}
        alarms = {name for name, variants in case["cells"].items() if variants["correct"]["cell"] == "false-alarm"}
        lines.append(f"| {case['slug']} | " + " | ".join(
            cells[name] + (" (!)" if name in alarms else "") for name in checkers) + " |")
    for label, key in (("exact", "exact"), ("named", "slug"), ("noticed", "family"), ("false alarms", "false_alarms")):
        lines.append(f"| **{label}** | " + " | ".join(share(result["totals"][name][key]) for name in checkers) + " |")
    return "\n".join(lines) + "\n"
