"""What a finding means: `lockstep explain NAME`, from the pages that the package has with it."""

from __future__ import annotations

import difflib
import pathlib
import re
import textwrap

PACKAGE = pathlib.Path(__file__).parent
SECTIONS = "Symptom", "Why", "Fix"


def pitfall_pages() -> dict[str, pathlib.Path]:
    return {page.stem: page for page in PACKAGE.glob("lessons/*/pitfalls/*.md")}


def generic_findings() -> dict[str, str]:
    text = (PACKAGE / "findings.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^- `([a-z-]+)`: (.*\n(?:  .*\n)*)", text, re.MULTILINE))


def of_pitfall(page: pathlib.Path) -> str:
    """What is to do in Python stands before what is to do in C++, or in both."""
    text = page.read_text(encoding="utf-8")
    title, *sections = re.split(r"^##? ", text, flags=re.MULTILINE)[1:]
    told = [title.strip()]
    for section in sections:
        name, _, what = section.strip().partition("\n")
        if name in SECTIONS:
            both, _, python = what.partition("\n\nIn Python")
            told.append(f"## {name}\n" + (f"In Python{python}\n\n" if python else "") + both)
    return "\n\n".join(told) + "\n"


def of_generic(name: str, item: str) -> str:
    from lockstep_torch.extension import extension
    nearest = "".join(f"- {pitfall}: {sign}\n" for pitfall, sign in extension().nearest_to(name))
    meaning = textwrap.fill(f"No pitfall has a name for what is wrong: {' '.join(item.split())}", 80)
    return f"A generic finding: {name}\n\n{meaning}\n\n## Nearest, and what would show\n{nearest}"


def all_names() -> str:
    titles = [of_pitfall(page).partition("\n")[0] for _, page in sorted(pitfall_pages().items())]
    return "\n".join([*titles, *(f"{name}: a generic finding" for name in generic_findings())]) + "\n"


def explained(name: str) -> str:
    """Raises LookupError, with what to do, where nothing is called that."""
    pages, findings = pitfall_pages(), generic_findings()
    if name in pages:
        return of_pitfall(pages[name])
    if name in findings:
        return of_generic(name, findings[name])
    near = difflib.get_close_matches(name, [*pages, *findings], 1)
    raise LookupError(f"no finding is called {name}; " +
                      (f"the nearest: {near[0]}" if near else "lockstep explain, without a name, lists all"))
