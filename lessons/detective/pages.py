"""The pitfalls' pages: facts, title, sections, hints. common/lockstep/report/facts.h explains the facts."""

import dataclasses
import pathlib
import re

LESSONS = pathlib.Path(__file__).resolve().parents[1]
EVENTS = LESSONS.parent / "common" / "lockstep" / "trace" / "trace.md"  # what the detectors need


@dataclasses.dataclass(frozen=True)
class Page:
    slug: str
    lesson: str
    title: str
    text: str
    facts: dict

    def section(self, name):
        found = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", self.text, re.MULTILINE | re.DOTALL)
        return found.group(1).strip() if found else ""

    def hints(self):
        found = re.findall(r"^\d\. (.*?)(?=^\d\. |\Z)", self.section("Hints"), re.MULTILINE | re.DOTALL)
        return [" ".join(hint.split()) for hint in found]

    def ranks(self, world_size):
        """Those at fault; None where the page does not say."""
        value = of_world(self.facts.get("ranks", ""), world_size)
        whole = {"all": list(range(world_size)), "first": [0], "last": [world_size - 1]}
        return whole.get(value) or [int(rank) for rank in re.findall(r"\d+", value)] or None

    def needs(self):
        """(the kinds of event that must be there, those that help)."""
        must, _, more = self.facts["needs"].partition(";")
        kinds = [re.findall(r"`(\w+)`", part) for part in (must, more)]
        return (kinds[0] or kinds[1], kinds[1])


def of_world(value, world_size):
    """Of a fact that differs by the number of ranks, `2: all, else: last`, the one for so many."""
    cases = dict(re.findall(r"(\d+|else): (.*?)(?=, (?:\d+|else): |$)", value))
    return cases.get(str(world_size), cases.get("else", "")) if cases else value


def read(file):
    _, head, text = file.read_text(encoding="utf-8").split("---\n", 2)
    facts = dict(line.split(": ", 1) for line in head.splitlines())
    title = re.search(r"^# [\w-]+: (.*)$", text, re.MULTILINE).group(1)
    return Page(file.stem, file.parts[-3], title, text, facts)


def read_all():
    """By slug, in the order of the lessons. Those of a GPU are not played."""
    every = [read(file) for file in sorted(LESSONS.glob("*/pitfalls/*.md"))]
    return {page.slug: page for page in every if "gpu" not in page.facts}


def generic(said_of):
    """What faults are called that no pitfall has a name for. `said_of`: a name's explanation."""
    table = EVENTS.read_text(encoding="utf-8").split("The generic findings")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([\w-]+)` \| \d \| (.*) \|$", table, re.MULTILINE)
    return {slug: Page(slug, "no lesson", said_of(slug), "", {"needs": needs}) for slug, needs in rows}
