"""The figures that measure.py wrote, by the picture's name, and how others differ from them."""

import json
import math
import pathlib

FILE = pathlib.Path(__file__).resolve().parents[2] / "reports/results/pictures.json"
TIMES = ("_ms", "_s")  # how the names of what hangs on time end
RELATIVE = 1e-3  # other processors round otherwise


def measured(name):
    return json.loads(FILE.read_text(encoding="utf-8"))[name]


def differences(before, now, place=""):
    """Where two measurements differ in what does not hang on time."""
    if isinstance(before, dict) and isinstance(now, dict):
        keys = [key for key in {**before, **now} if not key.endswith(TIMES)]
        return [line for key in keys for line in differences(before.get(key), now.get(key), f"{place}.{key}")]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        return [line for at, both in enumerate(zip(before, now, strict=True)) for line in differences(*both, f"{place}[{at}]")]
    if isinstance(before, float) and isinstance(now, float) and math.isclose(before, now, rel_tol=RELATIVE, abs_tol=1e-9):
        return []
    return [] if before == now else [f"{place.removeprefix('.')}: {before} was written, {now} is measured"]
