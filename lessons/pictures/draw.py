"""Draws the pictures of the pages, each by the module of its name. FILE is where it goes; the page beside it shows it, which
PAGE names where there are several.

usage: python3 lessons/pictures/draw.py      writes them beside the pages, and their texts into the pages
"""

import importlib
import pathlib
import re
import sys
import xml.etree.ElementTree as xml

HERE = pathlib.Path(__file__).resolve().parent
NO_PICTURES = {"draw", "svg", "figures", "step_costs"}  # nor are measure.py and its parts


def drawn():
    """{file: its text}: the pictures, and the pages that show them."""
    sys.path.insert(0, str(HERE))
    names = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in NO_PICTURES and not path.stem.startswith("measure"))
    made = {}
    for module in map(importlib.import_module, names):
        file, picture = (HERE.parent / module.FILE).resolve(), module.draw()
        [page] = file.parent.glob(getattr(module, "PAGE", "*.md"))
        text = made.get(page) or page.read_text(encoding="utf-8")
        made |= {file: picture, page: with_words(text, file.name, picture)}
    return made


def with_words(page, name, picture):
    """What the page says in place of a picture, for those who cannot see it, is what the picture itself says."""
    words = xml.fromstring(picture).find("{*}desc").text
    text, places = re.subn(rf"!\[[^\]]*\]\({re.escape(name)}\)", lambda _: f"![{words}]({name})", page)
    if places != 1:
        raise ValueError(f"a page shows {name} {places} times, and not once")
    return text


if __name__ == "__main__":
    for file, text in drawn().items():
        file.write_text(text, encoding="utf-8")
