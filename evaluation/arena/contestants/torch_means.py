"""PyTorch's own means, one at a time. torch_means.py --means plain|info|detail|flight|barrier CASE OUT

evaluation/pytorch_means/means.py runs the job. A finding is what a reader would take from its output: an exception, a deadline
that passed, a rank ended by a signal, a difference that fr_trace reports; as advice a warning. Where a rank ends by
a signal that it does not end by without the means, the means has failed. The same findings are told once.
"""

import re
import sys

import contestant

sys.path.insert(0, str(contestant.ROOT / "evaluation" / "pytorch_means"))
import means
import rules

NAMES = {"plain": "plain PyTorch", "info": "INFO", "detail": "DETAIL", "flight": "flight recorder", "barrier": "monitored barrier"}
LONGEST = 1000  # characters of a text
PLACE = re.compile(r'File "[^"]*(train\.py)", line (\d+)')
LAUNCHERS_WORD = re.compile(r"ProcessRaisedException|ProcessExitedException|Process \d+ terminated")


def place(text):
    """The last line of the program in a traceback."""
    found = PLACE.findall(text)
    return ":".join(found[-1]) if found else None


def told(run):
    """[(rank or None, line, kind, place)] of what counts."""
    for rank, text in rules.speakers(run):
        for line in rules.messages(text):
            if run["means"] == "flight":
                if rules.DIFFERENCE.search(line):
                    yield rank, line, "violation", None
            elif rules.ERROR.search(line):
                yield rank, line, "violation", place(text)
            elif rules.WARNING.search(line):
                yield rank, line, "advice", None


def signals(run):
    """{rank: the signal that ended it}, without the launcher's own."""
    return {rank: -code for rank, code in enumerate(run["ended"] or [])
            if code is not None and code < 0 and code != rules.ENDED_BY_LAUNCHER}


def findings_of(run):
    found = {}
    for rank, line, kind, source in told(run):
        if LAUNCHERS_WORD.search(line):
            continue
        ranks = rules.ranks_of(line) or ([rank] if rank is not None else [])
        found.setdefault((kind, rules.normal(line), tuple(ranks)),
                         contestant.finding(kind, line[:LONGEST], ranks=ranks, source=source))
    if run["means"] != "flight":
        found |= {rank: contestant.finding("violation", f"rank {rank} was ended by signal {number}", ranks=[rank])
                  for rank, number in signals(run).items()}
        if not run["in_time"]:
            found["late"] = contestant.finding("violation", f"the job did not end in {means.DEADLINE_S} s")
        if not any(one["kind"] == "violation" for one in found.values()) and rules.failed(run):
            found["code"] = contestant.finding("violation", f"the ranks' exit codes are {run['ended']}")
    return list(found.values())


def answer(case, folder, options):
    job = means.Job(folder / case["program"], case["ranks"], case["nodes"], case["attempts"])
    run = means.run(job, options.means)
    if options.means != "plain":
        reason = rules.broken_down(run, means.run(job, "plain") if signals(run) else run)
        if reason:
            raise contestant.Failed(reason)
    return findings_of(run)


if __name__ == "__main__":
    contestant.main(__doc__, lambda options: NAMES[options.means], answer,
                    ("--means", {"choices": tuple(NAMES), "required": True}))
