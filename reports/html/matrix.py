"""The detector matrix: what was planted against what was named, variant by variant, and the sweep's counts."""

import pictures
import specs

RIGHT, NOT_ASKED = {"exact", "clean"}, {"not applicable", "not triggered", "skipped"}


def cells_of(variant):
    """slug -> how it was named."""
    cells = {finding["pitfall"]: "other advice" if finding["severity"] == "advice" else "another name"
             for finding in variant["findings"]}
    if variant["kind"] == "broken":
        own = {finding["severity"] for finding in variant["findings"] if finding["pitfall"] == variant["name"]}
        missing = "skipped" if variant["outcome"] == "skipped" else "nothing"
        cells[variant["name"]] = missing if not own else "its own name" + ("" if "violation" in own else ", as advice")
    return cells


def planted_and_named(charts, comparisons):
    """A row for each broken variant (and each healthy one with a finding) and pitfall named of it."""
    rows, healthy, found = [], 0, 0
    for comparison in comparisons:
        for variant in comparison["variants"]:
            cells = cells_of(variant)
            if variant["kind"] != "broken":
                healthy += 1
                found += bool(cells)
            rows += [[comparison["lesson"], f"{comparison['lesson'][:2]} {variant['name']}", slug, cell,
                      "#" + pictures.run_id(comparison["lesson"], variant["name"])] for slug, cell in cells.items()]
    if not rows:
        return None
    named = sum(row[3].startswith("its own name") for row in rows)
    broken = sum(variant["kind"] == "broken" for comparison in comparisons for variant in comparison["variants"])
    return charts.add(
        "matrix-variants", "Planted and named",
        f"A row for each broken variant, a column for each pitfall named: {named} of {broken} are named by their own name, on the "
        f"diagonal. Of {healthy} correct variants and near misses {found} have a finding, and a row. A cell leads to its run.",
        [("lesson", "lesson"), ("run", "planted"), ("found", "named"), ("cell", "how"), ("link", None)], rows, specs.named(),
        wide=True, lesson="lesson")


def sweep(charts, measured):
    """The committed sweep over world sizes and seeds; None where there is none."""
    levels = (measured.get("matrix") or {}).get("levels")
    if not levels:
        return None
    rows, exact, trials = [], 0, 0
    for level in levels:
        for size in level["by_world_size"]:
            for cell, runs in sorted(size["verdicts"].items(), key=lambda item: (item[0] not in RIGHT, item[0])):
                kind = "right" if cell in RIGHT else "not asked" if cell in NOT_ASKED else "wrong"
                rows.append([f"level {level['level']}, {size['world_size']} ranks", cell, runs, kind,
                             "#sweep-wrong" if kind == "wrong" else "#matrix-variants"])
        if level["level"] == 2:
            exact, trials = level["exact"]["successes"], level["exact"]["trials"]
    return charts.add(
        "matrix-sweep", "What the detectors said, by how much they were shown",
        "Committed results (reports/results/matrix.json), not of the runs above. Runs counted by level, ranks and verdict. "
        "Level 0 sees the backend alone, level 1 all but samples and metrics, level 2 "
        f"everything: there {exact} of {trials} runs with a pitfall are named exactly. not applicable: "
        "the level shows too little to name it, or the ranks are too few; not triggered: nothing to look at.",
        [("setting", "shown"), ("cell", "verdict"), ("runs", "runs"), ("kind", "that is"), ("link", None)], rows,
        specs.counts(len({row[0] for row in rows})))


def wrong_in_sweep(measured):
    """(level, run) of every cell that is not as it should be."""
    return [(level["level"], run) for level in (measured.get("matrix") or {}).get("levels", []) for run in level["not_exact"]]
