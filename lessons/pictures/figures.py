"""The figures that measure.py wrote, by the picture's name."""

import json
import pathlib

FILE = pathlib.Path(__file__).resolve().parents[2] / "reports/measured/pictures.json"


def measured(name):
    return json.loads(FILE.read_text(encoding="utf-8"))[name]
