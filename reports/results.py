"""Results as data: one record a line.

usage: python3 reports/results.py [FILE ...]    writes these anew, or all of reports/results

Whatever is no longer than a line of COLUMNS stands on one; what is longer is opened, and each of its parts has a line.
"""

import json
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent / "results"
COLUMNS = 400


def file_of(which):
    """Of what is scored, such as the set eighth/python."""
    return FOLDER / f"{which.replace('/', '_')}.json"


def lines(value, indent=0):
    flat = json.dumps(value, ensure_ascii=False)
    if len(flat) + indent <= COLUMNS or not isinstance(value, (dict, list)):
        return flat
    if isinstance(value, dict):
        (opened, closed), keys = "{}", [f"{json.dumps(key, ensure_ascii=False)}: " for key in value]
    else:
        (opened, closed), keys = "[]", [""] * len(value)
    parts = value.values() if isinstance(value, dict) else value
    inner = ",\n".join(f"{' ' * (indent + 1)}{key}{lines(part, indent + 1)}" for key, part in zip(keys, parts))
    return f"{opened}\n{inner}\n{' ' * indent}{closed}"


def text(value):
    return lines(value) + "\n"


def main():
    for file in [pathlib.Path(name) for name in sys.argv[1:]] or sorted(FOLDER.glob("*.json")):
        file.write_text(text(json.loads(file.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
