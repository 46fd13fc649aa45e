"""The table of what is promised under faults: rows.json, and what CTest knows of the tests that it names."""

import json
import pathlib
import subprocess

TABLE = pathlib.Path(__file__).resolve().with_name("rows.json")
ROWS = 34


def rows():
    """{row: (fault, names of tests)}"""
    table = json.loads(TABLE.read_text(encoding="utf-8"))["rows"]
    return {row["row"]: (row["fault"], row["tests"]) for row in table}


def labels(ctest, build):
    """{test: its labels} of a build folder. Of a suite with the label fault, each case has the suite's."""
    listed = subprocess.run([ctest, "--test-dir", build, "--show-only=json-v1"], text=True, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, timeout=100, check=True).stdout
    found = {}
    for test in json.loads(listed[listed.index("{"):])["tests"]:
        properties = {one["name"]: one["value"] for one in test.get("properties", [])}
        own = properties.get("LABELS", [])
        for name in (test["name"], *(cases(test) if "fault" in own else ())):
            found[name] = own
    return found


def cases(test):
    """The cases of a test that is a suite, as rows.json names them; of another test none."""
    suite = [word for word in test.get("command", []) if word.startswith("--gtest_filter=") and word.endswith(".*")]
    if not suite:
        return []
    listed = subprocess.run([test["command"][0], *suite, "--gtest_list_tests"], text=True, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, timeout=60, check=True).stdout
    return [f"{test['name']}.{line.split()[0]}" for line in listed.splitlines() if line.startswith("  ")]


def complaints(table, known):
    """What is wrong with the table, where `known` is what labels() gives."""
    wrong = [f"row {row} has no test" for row in range(1, ROWS + 1) if not table.get(row, ("", []))[1]]
    wrong += [f"there is no row {row}" for row in table if not 1 <= row <= ROWS]
    for row, (_, tests) in table.items():
        for test in tests:
            if test not in known:
                wrong.append(f"row {row} names {test}, which is no test of this build (is its program built?)")
            elif "fault" not in known[test]:
                wrong.append(f"row {row} names {test}, which has not the label fault: {known[test]}")
    return wrong
