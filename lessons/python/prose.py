"""A lesson's page and a pitfall's, as they look in a terminal of 80 columns (common/lockstep/course/prose.h)."""

import os
import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[2]
COLUMNS = 80
BOLD, RED, GREEN, CYAN = 1, 31, 32, 36


def coloured(text, colour):
    has_colours = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
    return f"\033[{colour}m{text}\033[0m" if has_colours else text


def wrapped(text, indent="", first=None):
    """A path or a link that is longer than the line stays whole."""
    return textwrap.fill(text, COLUMNS, initial_indent=indent if first is None else first, subsequent_indent=indent,
                         break_long_words=False, break_on_hyphens=False)


def section(page, name):
    found = re.search(rf"^## {re.escape(name)}\n(.*?)(?=^##? |\Z)", page, re.MULTILINE | re.DOTALL)
    return found[1].strip("\n") if found else ""


def hints(page):
    found = re.findall(r"^\d\. (.*?)(?=^\d\. |\Z)", section(page, "Hints"), re.MULTILINE | re.DOTALL)
    return [" ".join(hint.split()) for hint in found]


def difference(page):
    """What differs in Python between the broken and the right program: its lines, each with its sign."""
    found = re.search(r"In Python,\s\[[^\]]*\]\([^)]*\)[^\n]*\n+```diff\n(.*?)```", section(page, "The code"), re.DOTALL)
    return found[1].splitlines() if found else []


def say_heading(text):
    print(f"\n{coloured(text, BOLD)}")


def without_links(markdown, folder):
    """A link to a file says where that lies, and a picture what it shows. `folder` is the page's."""
    def told(link):
        picture, words, target = link.groups()
        place = target if "://" in target else os.path.relpath(folder / target, ROOT)
        return f"{'Picture: ' if picture else ''}{words}" + ("" if words.startswith("`") else f" ({place})")
    return re.sub(r"(!?)\[([^\]]*)\]\(([^)]*)\)", told, markdown)


def say_section(markdown, folder):
    """Prose is filled anew; lines that are indented by four are code, and stay."""
    paragraph = []

    def finish():
        if paragraph:
            text = " ".join(" ".join(paragraph).split())
            mark = (re.match(r"- |\d+\. ", text) or [""])[0]
            print(wrapped(text[len(mark):], " " * (2 + len(mark)), f"  {mark}"))
            paragraph.clear()
    for line in without_links(markdown, folder).splitlines():
        is_code = line.startswith("    ")
        if not line or is_code or re.match(r"- |\d+\. ", line):
            finish()
        if not line or is_code:
            print(line)
        else:
            paragraph.append(line)
    finish()


def say_difference(lines):
    colours = {"-": RED, "+": GREEN}
    for line in lines:
        shown = line if len(line) <= COLUMNS else textwrap.fill(line, COLUMNS, subsequent_indent=">   ", drop_whitespace=False)
        print(coloured(shown, colours[line[0]]) if line[:1] in colours else shown)
