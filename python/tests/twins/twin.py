"""What a program here has beside itself: which fault is switched on, and the figures that its oracle judges.

TWIN_FAULT is the slug of the fault, TWIN_NOTES a folder. Without them a program is right, and notes nothing.
"""

import json
import os
import pathlib


def fault(slug):
    return os.environ.get("TWIN_FAULT") == slug


def note(**figures):
    """This rank's figures, at the end of its program: a rank that has none did not get there."""
    if folder := os.environ.get("TWIN_NOTES"):
        pathlib.Path(folder, f"{os.environ['RANK']}.json").write_text(json.dumps(figures))
