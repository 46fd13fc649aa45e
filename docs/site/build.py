"""./lockstep docs: makes the site of README.md, docs/ and lessons/, and shows it on 127.0.0.1.

usage: build.py [--out DIR] [--build-only]      DIR: default build/site

The pages are copied first. The copies have no front matter, which is for programs, but a pitfall's equation; lessons list their
pitfalls; and api/ is made from the headers' comments and the Python docstrings.
"""

import argparse
import ast
import functools
import http.server
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "reports" / "html"))
import files  # noqa: E402

USAGE, COULD_NOT_RUN, INTERRUPTED = 2, 3, 130
HERE = pathlib.Path(__file__).resolve().parent
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#:]+)\)")
PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)]+)\.svg\)")
# What lessons/pictures/svg.py writes for a dark theme.
DARK_RULES = re.compile(r"@media\(prefers-color-scheme:dark\)\{((?:[^{}]*\{[^{}]*\})*)\}")
FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
# What README's menu has, in this order; lessons are added.
MARK = ".made-by-lockstep-docs"
# What pages link to.
FOLDERS = ["benchmarks", "cmake", "common", "docs", "evaluation", "lessons", "python", "reports", "tests"]
LINKED = ["LICENSE"]
MENU = {"Learn": ["lessons/start/start", "docs/lessons", "docs/equations", "docs/costs", "docs/glossary"],
        "My job": ["docs/symptoms", "docs/hangs", "docs/diagnose", "docs/findings", "docs/python", "docs/python-recorded",
                   "docs/calls"],
        "The library": ["docs/library", "api/cpp", "api/python"],
        "Evidence": ["docs/evaluation", "docs/silence", "docs/measurements", "docs/tests", "docs/gpus"],
        "More": ["docs/command-line", "docs/building", "CONTRIBUTING", "CHANGELOG", "SECURITY"]}
# The folders whose headers a user's program includes.
LIBRARIES = {"train": "DDP, samplers, schedules and what else a training loop needs", "dist": "process groups",
             "checkpoint": "checkpoints that Python reads", "record": "recording a job", "observe": "telling what a program does",
             "launch": "starting ranks and watching them"}


# What the theme leaves out and axe-core asks for: levels and names of parts, and keys that scroll what is wide.
MENDED = [('role="heading"', 'role="heading" aria-level="2"'), ('<aside class="sidebar-drawer"', '<aside aria-label="Pages" class="sidebar-drawer"'),
          ('<aside class="toc-drawer', '<aside aria-label="On this page" class="toc-drawer'), ("<pre>", '<pre tabindex="0">'),
          ('<div class="table-wrapper', '<div tabindex="0" class="table-wrapper')]
PICTURE_BEGINS = re.compile(r'<p>(?=<img [^>]*class="only-light")')


def toctree(entries, caption=""):
    about = f":caption: {caption}\n" if caption else ""
    return "\n".join(["", "```{toctree}", ":hidden:", ":maxdepth: 1", about, *entries, "```", ""])


def contract(text):
    """A header's first comment as text, and the rest of it without what every header has."""
    lines = text.splitlines()
    end = next(i for i, line in enumerate(lines) if not line.startswith("//"))
    rest = [line for line in lines[end:] if not re.match(r"#pragma once|#include|namespace \w+ \{$|\}  // namespace|namespace lockstep::", line)]
    return [line.removeprefix("//").removeprefix(" ") for line in lines[:end]], "\n".join(rest).strip()


def cpp_reference(folder):
    """A page for each library, with each header's comment and declarations."""
    for library, what in LIBRARIES.items():
        text = f"# lockstep/{library}: {what}\n"
        for header in sorted((ROOT / "common" / "lockstep" / library).glob("*.h")):
            about, code = contract(header.read_text(encoding="utf-8"))
            text += f"\n## {header.name}\n\n```text\n" + "\n".join(about) + f"\n```\n\n```cpp\n{code}\n```\n"
        (folder / f"{library}.md").write_text(text, encoding="utf-8")
    (folder / "cpp.md").write_text("# C++ reference\n\nWhat a program includes, by folder. The comments say what is collective, what "
                                   "blocks and what throws.\n\n" +
                                   "".join(f"- [lockstep/{name}]({name}.md): {what}\n" for name, what in LIBRARIES.items()) +
                                   toctree(LIBRARIES), encoding="utf-8")


def python_reference(folder):
    """What `import lockstep_torch` gives, with its docstrings."""
    package = ast.parse((ROOT / "python" / "lockstep_torch" / "__init__.py").read_text(encoding="utf-8"))
    text = f"# Python reference\n\n## lockstep_torch\n\n```text\n{ast.get_docstring(package)}\n```\n"
    for node in package.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            text += (f"\n## lockstep_torch.{node.name}\n\n```python\n{node.name}({ast.unparse(node.args)}) -> {ast.unparse(node.returns)}\n"
                     f"```\n\n{ast.get_docstring(node)}\n")
    (folder / "python.md").write_text(text, encoding="utf-8")


def copied(source):
    """The tree, with menus in its pages. A page that no menu has is an orphan, which Sphinx wants to be told."""
    for page in ROOT.glob("*.md"):
        shutil.copyfile(page, source / page.name)
    for file in LINKED:
        shutil.copyfile(ROOT / file, source / file)
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__", "out"))
    lessons = sorted(path.relative_to(source).as_posix() for path in source.glob("lessons/*/lesson.md"))
    menu = {**MENU, "Learn": [MENU["Learn"][0], *(name.removesuffix(".md") for name in lessons), *MENU["Learn"][1:]]}
    in_menu = {f"{entry}.md" for entries in menu.values() for entry in entries} | {"README.md"}
    for page in source.rglob("*.md"):
        name, whole = page.relative_to(source).as_posix(), page.read_text(encoding="utf-8")
        text = FRONT_MATTER.sub("", whole)
        if name == "README.md":
            text += "".join(toctree(entries, caption) for caption, entries in menu.items())
        elif page.name == "lesson.md":
            text += toctree(f"pitfalls/{each.stem}" for each in sorted(page.parent.glob("pitfalls/*.md")))
        elif page.parent.name == "pitfalls":
            slug = re.search(r"^breaks: (.+)$", whole, re.MULTILINE)[1]
            if slug != "none":
                text = text.replace("\n## ", f"\nIt breaks [{slug}](../../../docs/equations.md#{slug}).\n\n## ", 1)
        elif name not in in_menu:
            text = "---\norphan: true\n---\n" + text
        page.write_text(in_both_themes(without_folders(text, page), page), encoding="utf-8")


def without_folders(text, page):
    """A link to a folder, which GitHub shows and a site cannot, becomes its words."""
    return LINK.sub(lambda link: link[1] if (page.parent / link[2]).is_dir() else link[0], text)


def in_both_themes(text, page):
    """A picture knows the system's theme, not the site's switch. So the site has a light and a dark one of each, and furo shows one."""
    def both(shown):
        picture = page.parent / f"{shown[2]}.svg"
        drawn = picture.read_text(encoding="utf-8")
        if len(DARK_RULES.findall(drawn)) != 1:
            raise ValueError(f"{picture} does not have rules for a dark theme once")
        for theme, rules in (("light", ""), ("dark", r"\1")):
            picture.with_name(f"{picture.stem}-{theme}.svg").write_text(DARK_RULES.sub(rules, drawn), encoding="utf-8")
        return "".join(f"![{shown[1]}]({shown[2]}-{theme}.svg){{.only-{theme}}}" for theme in ("light", "dark"))

    return PICTURE.sub(both, text)


def is_marked(out):
    return (out / MARK).is_file() and not (out / MARK).is_symlink()


def build(out):
    """What is in `out` and not ours stays."""
    source, html = out / "source", out / "html"
    for ours in (source, html):
        if ours.is_symlink() or ours.exists() and not is_marked(out):
            refuse(f"{ours} is there and was not made by ./lockstep docs: name another folder by --out")
        shutil.rmtree(ours, ignore_errors=True)
    source.mkdir(parents=True)
    files.write(out / MARK, "")
    copied(source)
    (source / "api").mkdir()
    cpp_reference(source / "api")
    python_reference(source / "api")
    done = subprocess.run([sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-c", HERE, source,
                           out / "html"])
    if done.returncode == 0:
        for page in (out / "html").rglob("*.html"):
            text = page.read_text(encoding="utf-8")
            for before, after in MENDED:
                text = text.replace(before, after)
            text = PICTURE_BEGINS.sub('<p class="picture" tabindex="0">', text)
            page.write_text(text, encoding="utf-8")
        shutil.copyfile(out / "html" / "README.html", out / "html" / "index.html")
    return done.returncode


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        """A browser that goes away while a page is sent is nothing to tell of."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def refuse(why, code=USAGE):
    print(f"error: {why}", file=sys.stderr)
    sys.exit(code)


def main():
    parser = argparse.ArgumentParser(prog="./lockstep docs", description="Makes the site of the pages, and shows it on 127.0.0.1.")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "site", help="default: build/site")
    parser.add_argument("--build-only", action="store_true", help="do not show it")
    options = parser.parse_args()
    if build(options.out) != 0:
        refuse("the site could not be made: see above", COULD_NOT_RUN)
    print(f"{options.out / 'html' / 'index.html'}", flush=True)
    if options.build_only:
        return
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=options.out / "html")
    with Server(("127.0.0.1", 0), handler) as server:
        print(f"http://127.0.0.1:{server.server_port}/  (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except OSError as error:
        refuse(f"{error.filename}: {error.strerror}", COULD_NOT_RUN)
