"""The commands that the pages show, and what each names.

commands.json says which are run as they stand (`run`, with the exit code), and which are not, by their shape, and why
(`not_run`, regular expressions). What names a lesson, a pitfall or a step is of the course, and needs no entry:
docs.commands holds it against what there is, and in the full tier docs.lesson_pages runs it.
"""

import json
import pathlib
import re
import shlex
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.append(str(ROOT / "lessons" / "python"))
from fold import programs  # noqa: E402

HISTORY = {"CHANGELOG.md", "reports/results/silence_cost.md"}  # what was, and what a run wrote
PAGES = [page for kind in ("*", "docs/*", "lessons/**/*", "python/*", "evaluation/*", "common/**/*", "reports/**/*", ".github/**/*")
         for page in sorted(ROOT.glob(f"{kind}.md")) if page.relative_to(ROOT).as_posix() not in HISTORY]
LISTED = json.loads((HERE / "commands.json").read_text(encoding="utf-8"))
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?<=\n)(?:\n|#.*\n)((?:    .*\n)+)")
INLINE = re.compile(r"`([^`]+)`")
TOOLS = ("cmake", "ctest", "ninja", "pre-commit", "pip", "python3", "torchrun", "srun", "mpirun", "scp", "grep", "diff", "dmesg",
         "df", "ss", "pgrep", "strace", "timeout", "nvidia-smi")
COMMAND = re.compile(rf"(?:[A-Z_]+=\S+ )*(?:\./lockstep|lockstep (?:watch|diagnose|report|matrix)|(?:{'|'.join(TOOLS)}|\.?build/\S+|"
                     r"\.lockstep/\S+|~/\S+)(?= )) *\S")
PLACEHOLDERS = {"SLUG": "missing-set-epoch", "LESSON": "05", "STEP": "3"}
OF_THE_COURSE = re.compile(r"\./lockstep (?:run (?!all\b)[A-Za-z0-9]|explain|exercise (?:start|hint|check|prove|reset) |start\b)")
WITH_VALUE = ("--variant", "--world-size", "--trace", "--symptom")
STEPS = sorted(path.name[0] for path in ROOT.glob("lessons/start/[0-9]_*.py"))


def plain(line):
    """Without the remark behind it."""
    return " ".join(re.split(r" {3,}|  +#", line.strip())[0].split())


def lines_of(block):
    return [line for line in map(plain, re.sub(r"\s*\\\n\s*", " ", block).splitlines()) if line]


def commands_of(page):
    """Those of its sh blocks, a line each; of its other blocks, the lines that begin as commands do; and those inside of a
    sentence."""
    text = page.read_text(encoding="utf-8")
    blocks = FENCED.findall(text)
    shown = [line for language, body in blocks if language == "sh" for line in lines_of(body)]
    shown += [line[2:] for _, body in blocks for line in body.splitlines() if line.startswith("$ ")]
    rest = FENCED.sub("", text)
    shown += [line for body in INDENTED.findall(rest) for line in lines_of(body) if COMMAND.match(line)]
    inline = (plain(" ".join(code.split())) for code in INLINE.findall(INDENTED.sub("\n", rest)))
    return shown + [code for code in inline if COMMAND.match(code)]


def shown():
    """{command: the pages that show it}"""
    pages = {}
    for page in PAGES:
        for command in commands_of(page):
            pages.setdefault(command, []).append(page)
    return pages


def shapes_of(command):
    return [shape for shape in LISTED["not_run"] if re.fullmatch(shape, command)]


def real(command):
    """With real names for the words that stand for any."""
    return re.sub(r"\b[A-Z]+\b", lambda word: PLACEHOLDERS.get(word[0], word[0]), command)


def of_the_course():
    return {command: pages for command, pages in shown().items() if OF_THE_COURSE.match(command) and not shapes_of(command)}


def lesson_of(wanted):
    """The name of 05_set_epoch, 05, 5 or set_epoch; "" where there is none."""
    for folder in sorted(ROOT.glob("lessons/[0-9][0-9]_*/")):
        number, _, name = folder.name.partition("_")
        if wanted in (folder.name, number, number.lstrip("0"), name):
            return folder.name
    return ""


def pitfalls(lesson="*"):
    return {page.stem for page in ROOT.glob(f"lessons/{lesson}/pitfalls/*.md")}


def named_by(lesson):
    """The pitfall of its exercise."""
    text = (ROOT / "lessons" / lesson / "lesson.md").read_text(encoding="utf-8")
    return re.search(r"^## Exercise\n`([^`]+)`", text, re.MULTILINE)[1]


def wrong_with(command, described):
    """What it names and is not there, as words; "" where all is. `described`: what a lesson's program says of it."""
    words = shlex.split(real(command))[1:]
    options = [word for word in words if word.startswith("--")]
    values = {option: words[words.index(option) + 1] for option in WITH_VALUE if option in words}
    verb, *rest = [word for word in words if word not in options and word not in values.values()]
    in_python = "--python" in options
    if verb == "run":
        lesson = lesson_of(rest[0]) if len(rest) == 1 else ""
        if not lesson:
            return f"there is no lesson {rest}"
        told = described(lesson)
        there = pitfalls(lesson) & set(programs()) if in_python else {one["name"] for one in told["variants"]} | {"correct", "all"}
        if not there or values.get("--variant", min(there)) not in there:
            return f"{lesson} has no such variant; there are {sorted(there)}"
        ranks = int(values.get("--world-size", told["default_world_size"]))
        least = [one["min_world_size"] for one in told["variants"] if one["name"] == values.get("--variant")]
        return f"it takes {least} ranks" if least and ranks < least[0] else ""
    if verb == "start":
        return "" if len(rest) <= 1 and set(rest) <= set(STEPS) else f"there is no step {rest}"
    if verb == "exercise":
        rest = [named_by(lesson_of(rest[1]))] if lesson_of(rest[1]) else rest[1:]
    elif not rest or "--symptom" in options:
        return ""  # explain alone, or words
    if len(rest) != 1 or rest[0] not in (programs() if in_python else pitfalls()):
        return f"there is no pitfall {rest}" + (" in Python" if in_python else "")
    return ""
