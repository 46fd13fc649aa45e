"""Results as data: one record a line.

usage: python3 reports/results.py [FILE ...]    writes these anew, or all of reports/results and OTHERS

A record of at most COLUMNS stands on one line; what is longer is opened, and each of its parts has a line. A file is opened.
"""

import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
FOLDER = HERE / "results"
COLUMNS = 2500
# Other files of records, with their columns.
OTHERS = {"reports/schema/*.json": 600, "tests/fault/rows.json": 1000, "tests/lint/articles.json": 400,
          "CMakePresets.json": 400}


def file_of(which):
    """Of what is scored, such as the set eighth/python."""
    return FOLDER / f"{which.replace('/', '_')}.json"


def lines(value, columns, indent=0):
    flat = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, (dict, list)) or not value or (indent > 0 and len(flat) + indent <= columns):
        return flat
    if isinstance(value, dict):
        (opened, closed), keys = "{}", [f"{json.dumps(key, ensure_ascii=False)}: " for key in value]
    else:
        (opened, closed), keys = "[]", [""] * len(value)
    parts = value.values() if isinstance(value, dict) else value
    inner = ",\n".join(f"{' ' * (indent + 1)}{key}{lines(part, columns, indent + 1)}" for key, part in zip(keys, parts))
    return f"{opened}\n{inner}\n{' ' * indent}{closed}"


def text(value, columns=COLUMNS):
    return lines(value, columns) + "\n"


def files(root):
    """Each with its columns."""
    found = {path: COLUMNS for path in sorted(root.glob("reports/results/*.json"))}
    for pattern, columns in OTHERS.items():
        found |= {path: columns for path in sorted(root.glob(pattern))}
    return found


def main():
    known = files(HERE.parent)
    for file in [pathlib.Path(name).resolve() for name in sys.argv[1:]] or known:
        value = json.loads(file.read_text(encoding="utf-8"))
        file.write_text(text(value, known.get(file, COLUMNS)), encoding="utf-8")


if __name__ == "__main__":
    main()
