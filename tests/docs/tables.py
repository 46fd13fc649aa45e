"""What is made from the pitfalls' pages and the facts at their top: the tables of docs/lessons.md, docs/calls.md (`calls`)
and docs/equations.md (`breaks`), what must hold in a lesson.md, and README's count. Which pitfalls are named in a Python job
(docs/python-recorded.md), by what was measured, and what a benchmark printed (docs/costs.md). Of the arena, what is in its
corpus and what its contestants said (docs/arena.md). Of small changes to programs, what was found of them, and why the
rest was not (docs/evaluation.md).

usage: python3 tests/docs/tables.py      writes them into these pages
"""

import functools
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "evaluation"), str(ROOT / "evaluation" / "arena"), str(ROOT / "lessons" / "python")]
import scoring  # noqa: E402

CALLS, LESSONS, EQUATIONS = (ROOT / "docs" / f"{name}.md" for name in ("calls", "lessons", "equations"))
DIAGNOSE = ROOT / "common" / "lockstep" / "diagnose"
README = ROOT / "README.md"
COSTS, ARENA = ROOT / "docs" / "costs.md", ROOT / "docs" / "arena.md"
EVALUATION = ROOT / "docs" / "evaluation.md"
PYTHON, RESULTS = ROOT / "docs" / "python-recorded.md", ROOT / "reports" / "results"
BEGIN, END = "<!-- made by tests/docs/tables.py -->\n", "<!-- up to here -->\n"

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
    "launcher": "a launcher that records how ranks end (`lockstep/launch/supervise.h`)",
}


@functools.cache
def pages():
    return sorted(ROOT.glob("lessons/*/pitfalls/*.md"))


def lesson_pages():
    return sorted(ROOT.glob("lessons/*/lesson.md"))


@functools.cache
def facts_of(page):
    """{name: value} between the two lines "---" at its top."""
    front = page.read_text(encoding="utf-8").removeprefix("---\n").split("\n---\n")[0]
    return dict(re.findall(r"^(\w+): (.+)$", front, re.MULTILINE))


def calls_of(page):
    """In the order of the table; none where the page does not say."""
    return tuple(sorted(facts_of(page).get("calls", "").split(", "), key=["", *WORDS].index))


def calls_table():
    rows = {}
    for page in pages():
        rows.setdefault(calls_of(page), []).append(f"[`{page.stem}`](../{page.relative_to(ROOT).as_posix()})")
    lines = ["| what your program says itself | number | without it these are not seen |", "|---|---|---|"]
    for calls in sorted(rows, key=lambda calls: [list(WORDS).index(call) for call in calls]):
        lines.append(f"| {', and '.join(WORDS[call] for call in calls)} | {len(rows[calls])} | {', '.join(rows[calls])} |")
    return "\n".join(lines) + "\n"


def lessons_table():
    lines = ["| lesson | pitfalls |", "|---|---|"]
    for lesson in lesson_pages():
        folder = f"../lessons/{lesson.parent.name}"
        slugs = ", ".join(f"[{page.stem}]({folder}/pitfalls/{page.name})" for page in pages() if lesson.parent in page.parents)
        lines.append(f"| [{lesson.parent.name}]({folder}/lesson.md) | {slugs} |")
    return "\n".join(lines) + "\n"


def equations():
    """[(slug, sentence, what it must hold for)], in order."""
    return re.findall(r'\{"([a-z-]+)",\s+"([^"]+)",\s+"([a-z]+)",', (DIAGNOSE / "equations.cpp").read_text(encoding="utf-8"))


def generic_findings():
    """{slug: the equation that it breaks}"""
    names = re.findall(r'^      \{"([a-z-]+)",$', (DIAGNOSE / "nearest.cpp").read_text(encoding="utf-8"), re.M)
    rules = dict(re.findall(r'\.slug = "([a-z-]+)",\s+\.equation = Equation::(\w+)', "".join(
        file.read_text(encoding="utf-8") for file in DIAGNOSE.glob("detectors/*.cpp"))))
    return {name: rules[name].replace("_", "-") for name in names}


def equations_table():
    lines = ["| equation | what must hold | for every | lessons | pitfalls, and [generic findings](findings.md) |", "|" + "---|" * 5]
    generic = generic_findings()
    for slug, sentence, per in equations():
        breaking = [page for page in pages() if facts_of(page)["breaks"] == slug]
        lessons = ", ".join(f"[{name[:2]}](../lessons/{name}/lesson.md)" for name in dict.fromkeys(page.parts[-3] for page in breaking))
        by = [f"[{page.stem}](../{page.relative_to(ROOT).as_posix()})" for page in breaking]
        by += [f"*{one}*" for one in sorted(generic) if generic[one] == slug]
        lines.append(f"| [{slug}](#{slug}) | {sentence} | {per} | {lessons} | {', '.join(by)} |")
    return "\n".join(lines) + "\n"


def with_equations(text, lesson):
    """What must hold, and the lesson's pitfalls break."""
    broken = {facts_of(page)["breaks"] for page in pages() if lesson.parent in page.parents}
    said = "; ".join(f"{sentence} ([`{slug}`](../../docs/equations.md#{slug}))" for slug, sentence, _ in equations() if slug in broken)
    return with_one(text, r"^What must hold:.*$", f"What must hold: {said}.", lesson)


# What a pitfall needs in Python, beside nothing.
PYTHON_CALLS = {**{call: f"`lockstep_torch.{call}`" for call in ("loss", "intent", "metric", "decision", "random_numbers",
                                                                  "training_state", "average", "async_result")},
                **dict.fromkeys(("observer", "probes", "launcher"), "an event that Python does not record")}


def in_python():
    """{pitfall: how its Python programs are named}: by no call, by which, not exactly, or not tried."""
    from programs import TRUTHS  # here: it brings modules whose names other scripts have as well
    scores = json.loads((RESULTS / "twins.json").read_text())
    twins = {**scores["first"]["runs"], **scores["later"]["runs"]}
    others = json.loads((RESULTS / "threads.json").read_text())["later"]["runs"]
    truths = json.loads((ROOT / "evaluation" / "threads" / "truths.json").read_text())
    found = dict.fromkeys((page.stem for page in pages()), "not tried in Python")
    for slug, one in [*((truths[name]["names"][0], one) for name, one in others.items()), *twins.items()]:
        if slug not in found:
            continue  # it has no page, or is a right program
        calls = TRUTHS[slug].get("calls", []) if slug in TRUTHS else []
        if one["verdict"] == "exact":
            found[slug] = "no call"
        elif found[slug] != "no call":
            found[slug] = " and ".join(dict.fromkeys(PYTHON_CALLS[call] for call in calls)) or "named otherwise, or not at all"
    return found


def python_table():
    rows = {}
    for slug, how in in_python().items():
        rows.setdefault(how, []).append(slug)
    last = ["named otherwise, or not at all", "not tried in Python"]
    lines = ["| what it takes | number | pitfalls |", "|---|---|---|"]
    for how in sorted(rows, key=lambda how: (how in last, how != "no call", how)):
        slugs = ", ".join(f"`{slug}`" for slug in rows[how])
        lines.append(f"| {how} | {len(rows[how])} | {slugs} |")
    return "\n".join(lines) + "\n"


def costs_output():
    lines = json.loads((RESULTS / "step_costs.json").read_text())["printed"]
    return "\n".join(["```text", *(line.rstrip() for line in lines), "```"]) + "\n"


def contestants_table():
    measured = json.loads((RESULTS / "arena.json").read_text(encoding="utf-8"))
    drawn = measured["sample"]
    lines = [f"{drawn['faults']} faults and {drawn['benign']} benign cases of the {measured['split']} split, drawn by seed "
             f"{drawn['seed']}; corpus version {measured['corpus_version']}, torch {measured['torch']}, {measured['date']}.",
             "The intervals are of 95 %. What each said of each case is in [the result](../reports/results/arena.json).", "", "| contestant | named | placed | noticed | silent | false alarms | failed |",
             "|" + "---|" * 7]
    for row in measured["contestants"].values():
        if row["state"] == "not run":
            lines.append(f"| {row['name']} | not run: {row['reason']} |" + " |" * 5)
            continue
        shares = [*row["faults"]["all"].values(), row["false alarms"]]
        lines.append(f"| {row['name']} | " + " | ".join(map(scoring.share_text, shares)) + f" | {row['errors']} |")
    return "\n".join(lines) + "\n"


SETS = {"changes": ("changes to right programs, by an author who had not read the detectors", "an oracle"),
        "lessons": ("the lessons' pitfalls as scripts, each right and with its fault", "an oracle"),
        "threads": ("faults out of other projects' issue threads", "the thread")}


def corpus_table():
    import corpus  # here, as in in_python
    lines = ["| set | what | programs | faults | benign | truth by |", "|" + "---|" * 6]
    for name, one in corpus.counts(corpus.public()).items():
        what, by = SETS[name]
        lines.append(f"| {name} | {what} | {one['programs']} | {one['faults']} | {one['benign']} | {by} |")
    return "\n".join(lines) + "\n"


def small_changes():
    return json.loads((RESULTS / "small_changes.json").read_text(encoding="utf-8"))


def changes_table():
    lines = ["| set | faults | named | noticed, ranks and step right | noticed | silent | named by now | the same on all ranks | "
             "false alarms |", "|" + "---|" * 9]
    for one in small_changes()["sets"]:
        same, benign = one["same_on_all_ranks"], one["benign"]
        cells = (f"{one['language']}, {one['set']}", one["faults"], f"{one['named']} = {one['named'] / one['faults']:.2f}",
                 one["placed"], one["noticed"], one["silent"], "-" if one["named_by_now"] is None else one["named_by_now"],
                 f"{same['named']} of {same['of']}", f"{benign['false_alarms']} of {benign['of']}")
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def missed_table():
    """Why each fault of the third to eighth sets that is not named by now is not."""
    lines = ["| faults | what | why |", "|---|---|---|"]
    lines += [f"| {kind['faults']} | {kind['what']} | {kind['why']} |" for kind in small_changes()["missed"]]
    return "\n".join(lines) + "\n"


def with_tables(text, *tables):
    """Each in its place, in order."""
    first, *rest = text.split(BEGIN)
    if len(rest) != len(tables):
        raise ValueError(f"{len(rest)} places for {len(tables)} tables")
    return first + "".join(BEGIN + "\n" + table + "\n" + END + part.split(END)[1] for table, part in zip(tables, rest))


def with_one(text, pattern, instead, page):
    text, places = re.subn(pattern, instead, text, flags=re.MULTILINE)
    if places != 1:
        raise ValueError(f"{page}: {pattern} is there {places} times, not once")
    return text


def made():
    """{page: its text, with what is made}"""
    tables = {CALLS: [calls_table], LESSONS: [lessons_table], EQUATIONS: [equations_table], PYTHON: [python_table],
              COSTS: [costs_output], ARENA: [contestants_table, corpus_table], EVALUATION: [changes_table, missed_table]}
    texts = {page: with_tables(page.read_text(encoding="utf-8"), *(make() for make in each)) for page, each in tables.items()}
    texts |= {page: with_equations(page.read_text(encoding="utf-8"), page) for page in lesson_pages()}
    return {**texts, README: with_one(README.read_text(encoding="utf-8"), r"\b\d+ of these pitfalls", f"{len(pages())} of these pitfalls",
                                      README)}


if __name__ == "__main__":
    for page, text in made().items():
        page.write_text(text, encoding="utf-8")
