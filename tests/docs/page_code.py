"""The code that pages show, made from the programs that tests run: the steps of lessons/start/start.md, each as its
difference to the one before, and on each pitfall's page what differs between broken and right, in C++ and in Python.

usage: python3 tests/docs/page_code.py LOCKSTEP      writes it into these pages (LOCKSTEP: the built lockstep-course)
"""

import difflib
import os
import pathlib
import re
import subprocess
import sys

from tables import END, ROOT, pages

START = ROOT / "lessons" / "start"
sys.path[:0] = [str(START), str(ROOT / "lessons" / "python")]  # of two run.py that of the steps
from fold import fold, programs  # noqa: E402
from run import STEPS, difference  # noqa: E402

MARK = "<!-- made by tests/docs/page_code.py -->\n"
STEP = re.compile(rf"(<!-- made by tests/docs/page_code.py: (\w+) -->\n).*?({re.escape(END)})", re.DOTALL)
SECTION = re.compile(r"## The code\n.*?(?=^## )", re.MULTILINE | re.DOTALL)
DEADLINE_S = 60
CONTEXT = 2


def fenced(kind, lines):
    return f"```{kind}\n" + "\n".join(lines) + "\n```\n"


def step_block(step):
    """A step in Python, and in C++ folded up below it: whole, or as its difference to the step before."""
    kinds = ("python", "cpp") if step == STEPS[0] else ("diff", "diff")
    python, cpp = (fenced(kind, difference(step, ending)) for kind, ending in zip(kinds, (".py", ".cpp")))
    return f"{python}\n<details markdown=\"1\"><summary>The same in C++</summary>\n\n{cpp}\n</details>\n"


def with_steps(text):
    return STEP.sub(lambda found: f"{found[1]}\n{step_block(found[2])}\n{found[3]}", text)


def shown(patch):
    """A unified diff's lines, without its head and its counts, and what is further than CONTEXT lines from a change."""
    patch = [line.rstrip() for line in patch if not line.startswith(("---", "+++"))]
    changed = [at for at, line in enumerate(patch) if line[:1] in ("-", "+")]
    lines = []
    for at, line in enumerate(patch):
        near = not line.startswith("@@") and any(abs(at - other) <= CONTEXT for other in changed)
        if near or lines[-1:] != ["..."]:
            lines.append(line if near else "...")
    while lines[0] in ("", "..."):
        del lines[0]
    while lines[-1] in ("", "..."):
        del lines[-1]
    return lines


def cpp_block(page, program):
    slug = page.stem
    patch = subprocess.run([program, "explain", slug, "--diff"], capture_output=True, text=True, check=True, timeout=DEADLINE_S)
    [file] = [path for path in sorted(page.parents[1].glob("*")) if path.suffix in (".cpp", ".h")
              and re.search(rf'\bfault\(\s*"{slug}"', path.read_text(encoding="utf-8"))]
    return f"In C++ (- broken, + right), [{file.name}](../{file.name}):\n{fenced('diff', shown(patch.stdout.splitlines()))}"


def python_block(page):
    """"" where there is no program in Python."""
    path = programs().get(page.stem)
    if path is None:
        return ""
    text = path.read_text(encoding="utf-8")
    patch = difflib.unified_diff(fold(text, page.stem).splitlines(), fold(text).splitlines(), lineterm="")
    link = pathlib.PurePosixPath(os.path.relpath(path, page.parent))
    return f"\nIn Python, [{path.name}]({link}):\n{fenced('diff', shown(patch))}"


def with_code(page, program):
    text = page.read_text(encoding="utf-8")
    section = f"## The code\n{MARK}{cpp_block(page, program)}{python_block(page)}{END}\n"
    if SECTION.search(text):
        return SECTION.sub(lambda _: section, text)
    return text.replace("## In your own job\n", f"{section}## In your own job\n", 1)


def made(program):
    """{page: its text, with the code}"""
    start = START / "start.md"
    return {start: with_steps(start.read_text(encoding="utf-8")), **{page: with_code(page, program) for page in pages()}}


def main():
    for page, text in made(sys.argv[1]).items():
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
