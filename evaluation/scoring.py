"""The one scorer: what is true of a run, how what a checker said agrees with it, and the shares of many runs.

Of a run with a fault: exact (one of the truth's names, with its ranks and its step, and no other violation), named (one
of its names), noticed, ranks and step right (a violation with another name), noticed (a violation), silent. Of a right
run: clean, false alarm. A truth is a record with the keys of truth.schema.json; a finding has `pitfall` (null where the
checker has no name of ours), `severity` (violation or advice), `ranks` and `step`, and may have `after` and `text`.
Shares need the package statsmodels.
"""

import collections
import dataclasses
import re

FAULT = ("exact", "named", "noticed, ranks and step right", "noticed", "silent")  # best first
RIGHT = ("clean", "false alarm")
NOT_ASKED = ("not applicable", "skipped")
VERDICTS = (*FAULT, *RIGHT, "not triggered", *NOT_ASKED, "error")
STEPS_APART = 1  # a checker may see a step's fault in the next one


class ScoreError(Exception):
    """What cannot be scored: what, where, and what to do."""


def of_size(value, world_size):
    """A value, or the one for this number of ranks."""
    return value[str(world_size)] if isinstance(value, dict) else value


@dataclasses.dataclass(frozen=True)
class Truth:
    """`ranks` holds each list of ranks that is right, `steps` the first and the last step that is; None: not said.
    `words` are regular expressions by which a checker without our names says what is wrong."""
    fault: bool = True
    names: tuple = ()
    ranks: tuple | None = None
    steps: tuple | None = None
    group: str = ""
    applicable: bool = True
    words: tuple = ()

    @classmethod
    def of(cls, record, world_size=2, before=STEPS_APART, behind=STEPS_APART):
        """Of a record. A finding may name a step so far `before` its step, or `behind` it."""
        about = {"group": record.get("class", ""), "applicable": record.get("applicable", True)}
        if record["kind"] == "benign":
            return cls(fault=False, **about)
        every = list(range(world_size))
        ranks, step = of_size(record["ranks"], world_size), of_size(record["step"], world_size)
        if ranks is not None:
            ranks = (every,) if ranks == "all" else (sorted(ranks), *([every] if record.get("either") else []))
        steps = None if step is None else (step - before, step + behind)
        return cls(names=tuple(record["names"]), ranks=ranks, steps=steps, words=tuple(record.get("words", ())),
                   **about)

    def is_named_by(self, finding):
        if finding["pitfall"] is not None:
            return finding["pitfall"] in self.names
        return any(re.search(words, finding["text"], re.IGNORECASE) for words in self.words)

    def has_ranks(self, finding):
        return self.ranks is None or sorted(finding["ranks"]) in self.ranks

    def has_step(self, finding):
        if self.steps is None:
            return True
        if finding["step"] is None:
            return False
        first = finding["after"] + 1 if "after" in finding else finding["step"]  # it did not show at that one yet
        return first <= self.steps[1] and self.steps[0] <= finding["step"]


def verdict(truth, findings, state="answered"):
    """One of VERDICTS. `state`: answered, not triggered (it lacked what it needs to look), error or skipped."""
    if not truth.applicable:
        return "not applicable"
    if state in ("error", "skipped"):
        return state
    violations = [one for one in findings if one["severity"] == "violation"]
    nothing = "not triggered" if state == "not triggered" else "silent" if truth.fault else "clean"
    if not truth.fault:
        return "false alarm" if violations else nothing
    right = [one for one in findings if truth.is_named_by(one)]
    if right:
        alone = all(one in right for one in violations)
        return "exact" if alone and any(truth.has_ranks(one) and truth.has_step(one) for one in right) else "named"
    if any(one["ranks"] and truth.has_ranks(one) and truth.has_step(one) for one in violations):
        return "noticed, ranks and step right"
    return "noticed" if violations else nothing


def is_wrong(fault, word):
    """Whether this is held against a checker. A right run that it could not look at proves nothing either way."""
    return word not in ("exact", "clean", *NOT_ASKED) and (fault or word != "not triggered")


def share(successes, trials):
    """With Wilson's 95 % interval; of no trials nothing is known."""
    if trials == 0:
        return {"successes": 0, "trials": 0, "value": None, "low": None, "high": None}
    try:
        from statsmodels.stats.proportion import proportion_confint
    except ImportError:
        raise ScoreError("this Python has no statsmodels; pip install statsmodels") from None
    low, high = proportion_confint(successes, trials, method="wilson")
    return {"successes": successes, "trials": trials, "value": successes / trials,
            "low": 0.0 if successes == 0 else float(low), "high": 1.0 if successes == trials else float(high)}


def counts(words):
    """{verdict: how many}, of those that there are."""
    number = collections.Counter(words)
    return {word: number[word] for word in VERDICTS if number[word]}


def totals(scored):
    """Of [(whether it is a fault, verdict)]: of the faults that were asked for, the shares exact, named (or exact) and
    noticed (or named); of the right runs that were looked at, the share of false alarms."""
    faults = [word for fault, word in scored if fault and word not in NOT_ASKED]
    right = [word for fault, word in scored if not fault and word in RIGHT]
    def upto(last):
        best = FAULT[:FAULT.index(last) + 1]
        return share(sum(word in best for word in faults), len(faults))
    return {"verdicts": counts(word for _, word in scored), "exact": upto("exact"), "named": upto("named"),
            "noticed": upto("noticed"), "false_alarms": share(right.count("false alarm"), len(right))}


def last(report, name):
    """The last run of a program in a result of sets.py; None where it has none."""
    runs = [report[key]["runs"][name] for key in ("later", "first") if name in report.get(key, {}).get("runs", {})]
    return runs[0] if runs else None


def share_text(one):
    return f"{one['successes']} of {one['trials']} [{one['low']:.2f}, {one['high']:.2f}]" if one["trials"] else "-"
