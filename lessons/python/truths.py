"""truths.json, and what a run of a program has shown.

Of each fault: the program, `sees`: what its oracle says is not so, the ranks at fault (of two, where there are none,
either may be named), the calls of Lockstep that its page asks for.
"""

import importlib
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from fold import file_of  # noqa: E402
from twin import WORLD  # noqa: E402

TRUTHS = json.loads((HERE / "truths.json").read_text())
ATTEMPTS = dict.fromkeys(["midway", "restarts", "resumes", "time_limit"], 2)  # that often it is started
NODES = {"on_two_nodes": 2}  # so many it is told of; all ranks are here
RANKS = 2  # of the runs that are scored


def variables(program):
    """What start.py is told of a program: how many nodes its ranks are to be on."""
    return {"NODES": str(NODES[program])} if program in NODES else {}


def judged(program, code, notes):
    """{what must be so: whether it is}, by the program's oracle. A rank that does not get to its end notes nothing."""
    files = [pathlib.Path(notes, f"{rank}.json") for rank in range(WORLD)]
    seen = {"ended": code == 0 and all(file.exists() for file in files)}
    if seen["ended"]:
        sys.path.insert(0, str(file_of(program).parent))
        seen |= importlib.import_module(program).oracle([json.loads(file.read_text()) for file in files])
    return seen


def is_proved(slug, seen):
    """The oracle tells this fault from the right program, and by what the truth says; without a slug: all is right."""
    return all(seen.values()) if not slug else not seen.get(TRUTHS[slug]["sees"], True)


def runs():
    """(program, slug) of each run; the slug is empty for the right program."""
    programs = dict.fromkeys(truth["program"] for truth in TRUTHS.values())
    return [(program, "") for program in programs] + [(truth["program"], slug) for slug, truth in TRUTHS.items()]


def record_of(slug):
    """A fault's truth, as all that is scored has it (reports/schema/truth.schema.json)."""
    return {"kind": "fault", "names": [slug], "ranks": TRUTHS[slug].get("ranks"), "step": None}
