"""Whether the same is said of the sets' programs as at another revision: its committed results beside the files here.

usage: python3 evaluation/same_findings.py REVISION [SET ...]      SET: eighth/python, eighth/cpp, threads, twins; all

Score the sets first (sets.py PACKAGE score later SET). Of each program the last findings are compared: pitfall,
severity, ranks and step. Exit code: 0 all are the same, 1 some differ, 3 a result cannot be read.
"""

import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "reports"))
import results  # noqa: E402

SETS = ("eighth/python", "eighth/cpp", "threads", "twins")


def findings_of(report):
    """{program: its last findings}, in whatever shape the report keeps them."""
    found = {}

    def visit(value, name):
        if "found" in value:
            found[name] = sorted((one["pitfall"], one["severity"], one["ranks"], str(one["step"]))
                                 for one in value["found"])
            return
        for key, part in value.items():
            if isinstance(part, dict):
                visit(part, f"right-{key}" if name == "right" else key)

    for key in ("first", "later"):
        visit(report.get(key, {}), key)
    return found


def compared(which, revision):
    """How many programs both have, and a line for each that differs."""
    file = results.file_of(which).relative_to(ROOT)
    then = subprocess.run(["git", "-C", ROOT, "show", f"{revision}:{file}"], capture_output=True, text=True,
                          check=False)
    if then.returncode != 0:
        raise ValueError(then.stderr.strip())
    before = findings_of(json.loads(then.stdout))
    now = findings_of(json.loads(results.file_of(which).read_text(encoding="utf-8")))
    both = sorted(before.keys() & now.keys())
    lines = [f"{which}: {name}: {before[name]} before, {now[name]} now" for name in both if before[name] != now[name]]
    lines += [f"{which}: {name}: in one of the two only" for name in sorted(before.keys() ^ now.keys())]
    return len(both), lines


def main(words):
    if not words or not set(words[1:]) <= set(SETS):
        sys.exit(__doc__)
    different = False
    for which in words[1:] or SETS:
        try:
            number, lines = compared(which, words[0])
        except (OSError, ValueError) as error:
            print(f"error: {which}: {error}", file=sys.stderr)
            return 3
        print("\n".join([*lines, f"{which}: {number} programs, {len(lines)} differences"]))
        different |= bool(lines)
    return int(different)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
