"""From what a means gave to a verdict of scoring.py. Pure functions; one rule for each means, none for a case.

Messages (plain, info, detail, barrier: what ranks and launcher printed; flight: what fr_trace printed)
  named      a line of the broken run, which the correct run does not have, holds one of the fault's words
             (vocabulary.py). Lines of a traceback that quote the program do not count: they hold our own words.
  ranks      those that such a line names; where it names none, those that printed it. A fault that is in what all
             ranks do needs none. Of two ranks that differ either may be named, as the twin says.
  place      a line of the program in a traceback, a sequence number or a parameter, anywhere in the output.
             Steps are not asked for: PyTorch does not count them.
  exact      named, with ranks and place
  noticed    an error, a deadline that passed, a warning that the correct run does not have
  error      a rank ended by a signal that it does not end by without the means, or fr_trace failed
  not triggered  no rank has recorded a collective (flight)
  On a correct run: a false alarm where a rank failed, a deadline passed or fr_trace reports a difference.
The loss curve (and the metric, where the program prints one), against five other seeds of the correct variant
  off        NaN or infinity; the last quarter's mean above the first's, where it is not in the five; or the mean over
             the second half outside of the 95 % prediction interval of the five (Student's t), steps that both have.
  It cannot name anything: off is noticed. Under 8 steps there is no curve: not triggered.
"""

import dataclasses
import math
import pathlib
import re
import statistics
import sys

from vocabulary import NAMES

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from scoring import FAULT  # noqa: E402

FEWEST_STEPS = 8
ENDED_BY_LAUNCHER = -15

FRAME = re.compile(r'^\s*File "[^"]*", line \d+, in ')
QUOTE = re.compile(r"^\s{4,}\S|^\s*[\^~]+\s*$")
STACK = re.compile(r"^\s*\S+ at \S+:\d+$")  # fr_trace's
RANKS = re.compile(r"\b(?:ranks?|process)\b:?\s*[\[{(]*\s*(\d+(?:\s*,\s*\d+)*)", re.IGNORECASE)
# Who says it, and who is well: neither is the rank that is meant.
SPEAKER = re.compile(r"\[\s*rank\s*\d+\s*\]:?|rank \d+ successfully reached", re.IGNORECASE)
PLACE = re.compile(r'File "[^"]*/\d\d_\w+/python/\w+\.py", line \d+|/\d\d_\w+/python/\w+\.py:\d+|sequence ?number|'
                   r"parameter (index|indices|name|at index)|params?\[\d+\]", re.IGNORECASE)
DIFFERENCE = re.compile(r"has errors|not all ranks join|mismatch|cannot decide", re.IGNORECASE)  # fr_trace's
ERROR = re.compile(r"^[\w.]*(Error|Exception)\b|terminate called")
WARNING = re.compile(r"\w*Warning\b|^\[W")


@dataclasses.dataclass(frozen=True)
class Verdict:
    word: str
    evidence: str = ""  # the line that decided


def messages(text):
    """The lines that are said: without those by which a traceback quotes the program."""
    said, in_frame = [], False
    for line in text.splitlines():
        if FRAME.match(line):
            in_frame = True
        elif STACK.match(line):
            in_frame = False
        elif in_frame and QUOTE.match(line):
            pass
        else:
            in_frame = False
            if line.strip():
                said.append(line.strip())
    return said


def normal(line):
    """Without what differs from run to run: numbers, addresses, times."""
    return re.sub(r"0x[0-9a-f]+|\d+", "#", line)


def ranks_of(line):
    return frozenset(int(rank) for group in RANKS.findall(SPEAKER.sub("", line)) for rank in group.split(","))


def speakers(run):
    """[(rank or None, text)] of what counts under the run's means."""
    if run["means"] == "flight":
        return [(None, run["fr_trace"] or "")]
    return [(int(who) if who.isdigit() else None, text) for who, text in run["texts"].items()]


def failed(run):
    if run["means"] == "flight":
        return any(DIFFERENCE.search(line) for line in messages(run["fr_trace"] or ""))
    return not run["in_time"] or run["ended"] is None or any(run["ended"])


def broken_down(run, plain):
    """Whether the means itself failed; the reason."""
    if run["means"] == "flight":
        return "fr_trace failed" if "fr_trace failed" in (run["fr_trace"] or "") else ""
    for rank, code in enumerate(run["ended"] or []):
        if code is not None and code < 0 and code not in (ENDED_BY_LAUNCHER, *(plain["ended"] or [])):
            return f"rank {rank} was ended by signal {-code}, which it is not without {run['means']}"
    return ""


def judge_correct(run, plain):
    reason = broken_down(run, plain)
    if reason:
        return Verdict("error", reason)
    if run["means"] == "flight" and run["fr_trace"] is None:
        return Verdict("not triggered")
    return Verdict("false alarm", last_words(run)) if failed(run) else Verdict("clean")


def last_words(run):
    pattern = DIFFERENCE if run["means"] == "flight" else ERROR
    lines = [line for _, text in speakers(run) for line in messages(text) if pattern.search(line)]
    return lines[0] if lines else "the run did not end in order"


def judge_broken(run, plain, correct, slug, ranks):
    """`plain` is the same variant without the means, `correct` the other variant with it; `ranks`: any of these sets of
    ranks may be named, and none need be where it is empty."""
    if run["means"] == "flight" and run["fr_trace"] is None:
        return Verdict("not triggered")
    reason = broken_down(run, plain)
    known = {normal(line) for _, text in speakers(correct) for line in messages(text)}
    new = [(rank, line) for rank, text in speakers(run) for line in messages(text) if normal(line) not in known]
    naming = [(rank, line) for rank, line in new if NAMES[slug].search(line)]
    if reason and not naming:
        return Verdict("error", reason)
    spoke = frozenset(rank for rank, _ in naming if rank is not None)
    there = any(PLACE.search(text) for _, text in speakers(run))
    for _, line in naming:
        if there and (not ranks or (ranks_of(line) or spoke) in ranks):
            return Verdict("exact", line)
    if naming:
        return Verdict("named", naming[0][1])
    if failed(run):
        return Verdict("noticed", last_words(run))
    warned = [line for _, line in new if WARNING.search(line)]
    return Verdict("noticed", warned[0]) if warned else Verdict("silent")


def mean_curve(curves):
    """The ranks' mean at each step that all have."""
    return [statistics.fmean(values) for values in zip(*curves)]


def rises(curve):
    quarter = max(1, len(curve) // 4)
    return statistics.fmean(curve[-quarter:]) > statistics.fmean(curve[:quarter])


def off(curve, references, falls):
    """Why a curve is off, "" where it is not. `falls`: it is one that should fall."""
    import scipy.stats  # only here, since the other rules do not need it
    if not all(map(math.isfinite, curve)):
        return "not a number, or infinite"
    steps = min(map(len, [curve, *references]))
    if falls and rises(curve) and not any(map(rises, references)):
        return "it rises"
    ends = [statistics.fmean(each[steps // 2:steps]) for each in references]
    own, mean = statistics.fmean(curve[steps // 2:steps]), statistics.fmean(ends)
    half = float(scipy.stats.t.ppf(0.975, len(ends) - 1)) * statistics.stdev(ends) * math.sqrt(1 + 1 / len(ends))
    return f"{own:.4g}, outside of {mean:.4g} +- {half:.4g}" if abs(own - mean) > half else ""


def judge_curve(run, references):
    """`references`: runs of the correct variant with other seeds. For either variant."""
    alarm, quiet = ("noticed", "silent") if run["broken"] else ("false alarm", "clean")
    losses = mean_curve(run["losses"])
    if len(losses) < FEWEST_STEPS:
        return Verdict("not triggered", f"{len(losses)} steps")
    why = off(losses, [mean_curve(one["losses"]) for one in references], falls=True)
    if why:
        return Verdict(alarm, "loss: " + why)
    metric = [values for values in run["metrics"] if values][:1]  # the first rank that prints one
    if metric:
        why = off(metric[0], [next(v for v in one["metrics"] if v) for one in references], falls=False)
        if why:
            return Verdict(alarm, "metric: " + why)
    return Verdict(quiet)


def best(words):
    """Of several means on one broken variant: the one that says most."""
    return min(words, key=lambda word: FAULT.index(word) if word in FAULT else len(FAULT))
