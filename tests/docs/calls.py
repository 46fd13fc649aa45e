"""docs/calls.md: which pitfalls are seen only where the program says something itself. The table is made from the line
`calls:` at the top of each pitfall's page.

usage: python3 tests/docs/calls.py      writes the table into the page
"""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "calls.md"
BEGIN, END = "<!-- made by tests/docs/calls.py -->\n", "<!-- up to here -->\n"
CALLS = re.compile(r"\A---\n(?:.+\n)*?calls: (.+)\n(?:.+\n)*?---\n")

# In the order of the table; and the word by which the pitfall's page says it under "In your own job".
WORDS = {
    "none": "none",
    "loss": "`cross_entropy`, or `tell_loss` around a loss of your own",
    "intent": "`record::intent`",
    "metric": "`record::metric`",
    "decision": "`record::decision`",
    "random_numbers": "`record::random_numbers`",
    "training_state": "`record::training_state`",
    "average": "`record::average`",
    "async_result": "`record::async_result`",
    "tell_pass": "`tell_pass`",
    "observer": "a clip or a writer of your own tells the listeners (`Observer`)",
    "record_into": "`record_into`, before any branch",
    "probes": "probes (`record::recorder_here()->probes()`)",
    "device_recorder": "a `record::DeviceRecorder` that listens",
    "launcher": "a launcher that records how ranks end (`lockstep/supervise`)",
}


def calls_of(page):
    """In the order of the table; none where the page does not say."""
    found = CALLS.match(page.read_text(encoding="utf-8"))
    return tuple(sorted(found[1].split(", "), key=list(WORDS).index)) if found else ()


def pitfalls():
    return {page.stem: page for page in sorted(ROOT.glob("lessons/*/pitfalls/*.md"))}


def table():
    rows = {}
    for slug, page in pitfalls().items():
        rows.setdefault(calls_of(page), []).append(f"[`{slug}`](../{page.relative_to(ROOT).as_posix()})")
    lines = ["| what your program says itself | | without it these are not seen |", "|---|---|---|"]
    for calls in sorted(rows, key=lambda calls: [list(WORDS).index(call) for call in calls]):
        lines.append(f"| {', and '.join(WORDS[call] for call in calls)} | {len(rows[calls])} | {', '.join(rows[calls])} |")
    return "\n".join(lines) + "\n"


def with_table(text):
    before, rest = text.split(BEGIN)
    return before + BEGIN + "\n" + table() + "\n" + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
