"""The JavaScript that draws the charts: Vega, Vega-Lite and Vega-Embed, as the pinned wheel vl-convert-python holds them.

The wheel bundles them into one script; that takes seconds, so the script is kept in the environment it came from, under
the wheel's version. Nothing is fetched.
"""

import importlib.metadata
import pathlib
import sys

import files

WHEEL = "vl-convert-python"


def kept_at():
    version = importlib.metadata.version(WHEEL)
    return pathlib.Path(sys.prefix) / "share" / "lockstep" / f"vega-of-{WHEEL}-{version}.js"


def bundle():
    import vl_convert  # half the cost of a report that has the script already
    return vl_convert.javascript_bundle()


def script(file=None):
    """The script's text, for a <script> element."""
    file = file or kept_at()
    try:
        text = files.read_text(file)
    except (OSError, ValueError):
        text = bundle()
        keep(file, text)
    if "</script" in text.lower():
        raise RuntimeError(f"the script of {WHEEL} holds \"</script\", so it cannot stand in a page")
    return text


def keep(file, text):
    """Whole or not at all; where nothing can be written the next report bundles again."""
    try:
        files.write(file, text)
    except OSError:
        pass
