"""Comparison reports and traces' pictures, made up by hand: small ones whose figures a test knows, one with hostile text,
and a folder of the size of a full run."""

import copy
import json
import random

HOSTILE = '</script><img src=x onerror=alert(1)>'
PLANTED = '"></style></script><script>window.planted = 1</script><img src=x onerror="window.planted = 1">'


def planted(content, kept=()):
    """JSON with a script in every text, and in the names of its pages, but for the words that are `kept`."""
    if isinstance(content, dict):
        return {PLANTED + name if name in content.get("pages", {}) else name: planted(value, kept)
                for name, value in content.items()}
    if isinstance(content, list):
        return [planted(value, kept) for value in content]
    return PLANTED + content if isinstance(content, str) and content not in kept else content


def words_of(schema):
    """Those that a schema lists: a text that is one of them is no free text."""
    inside = list(schema.values()) if isinstance(schema, dict) else schema if isinstance(schema, list) else []
    listed = {word for word in schema.get("enum", []) if isinstance(word, str)} if isinstance(schema, dict) else set()
    return listed.union(*map(words_of, inside))

ENVIRONMENT = {"git_revision": "0" * 40, "torch": "2.11.0", "compiler": "Clang 14", "backend": "gloo", "world_size": 2, "seed": 0,
               "cpu": "a processor", "processors": 2, "gpus": [], "data": "synthetic"}


def variant(name, kind, part="loop", losses=((2.25, 1.5), (2.75, 2.5)), **more):
    return {"name": name, "part": part, "kind": kind, "what": "", "world_size": 2, "participants": "ranks", "outcome": "completed",
            "reason": "", "stall": None, "oracles": [], "findings": [], "losses": [list(rank) for rank in losses],
            "accuracy": [], "timings": {"seconds": 1.25}, "verdict": "as-expected", **more}


def finding(pitfall, severity="violation", **more):
    return {"pitfall": pitfall, "severity": severity, "ranks": [1], "step": 3, "sequence": -1, "evidence": "it was seen", **more}


def oracle(pitfall, expected, observed, **more):
    return {"pitfall": pitfall, "metric": "a figure", "expected": expected, "observed": observed, "tolerance": 1e-4,
            "manifested": expected != observed, **more}


def report(lesson, variants, title="A lesson", **environment):
    return {"schema_version": 2, "lesson": lesson, "title": title, "environment": {**ENVIRONMENT, **environment},
            "as_expected": True, "variants": variants}


def pictures(broken):
    """Ten steps; two ranks that make six calls, the last of which rank 1 never enters if `broken`; eight samples."""
    calls = [{"rank": rank, "sequence": number, "op": "allreduce" if number > 2 else "broadcast", "group": "0",
              "entered_s": number / 10, "left_s": None if broken and number == 6 else number / 10 + 0.05}
             for rank in (0, 1) for number in range(1, 7) if not (broken and rank == 1 and number == 6)]
    halves = [[0, 2, 4, 6], [1, 3, 5, 7]]
    return {
        "tolerance": 1e-4,
        "divergence": [{"step": step, "distance": 2.0 ** step * 1e-6 if broken else 0} for step in range(10)],
        "timeline": {"calls": calls, "truncated": False,
                     "first_difference": {"group": "0", "sequence": 6, "ranks": [1]} if broken else None},
        "owners": [{"phase": "train", "epoch": epoch, "samples": 8, "every": 1,
                    "ranks": [[0, 1, 2, 3], [2, 3, 4, 5]] if broken else halves} for epoch in (0, 1)],
    }


def job(**more):
    """Of which nothing was recorded but that it was there."""
    return {"world_size": 2, "participants": "ranks", "missing_ranks": [], "incomplete": [], "ledger": [], "findings": [], "detectors": [], "stall": None,
            "losses": [], "pictures": {"divergence": [], "timeline": {"calls": []}, "owners": []}, **more}


def comparison(**more):
    return {"answer": "equal", "verdict": "the same", "a": {"name": "a", "ranks": 2, "updates": 3}, "first": None,
            "b": {"name": "b", "ranks": 2, "updates": 3}, "ledger": [], "measured": [], "notes": [], "unit": 1e-7, **more}


def write(folder, *reports):
    folder.mkdir(parents=True, exist_ok=True)
    for content in reports:
        (folder / f"{content['lesson']}.json").write_text(json.dumps(content), encoding="utf-8")


def small(folder):
    """Three lessons: with pictures; a hang, a wrong verdict and a skip, without pictures; with hostile text everywhere."""
    absent = {"rank": 1, "state": "absent", "to_blame": True, "here": None, "last": None, "ended": "raised", "exit_code": 1, "signal": 0}
    waits = {**absent, "rank": 0, "state": "waiting", "to_blame": False, "ended": "",
             "here": {"operation": "allreduce", "sequence": 9, "group": "0"}}
    write(
        folder,
        report("03_pictures", [
            variant("correct", "correct", pictures=pictures(False), oracles=[oracle("sum-not-mean", 1.0, 1.0)],
                 reference_losses=[2.5, 1.875]),
            variant("sum-not-mean", "broken", pictures=pictures(True), losses=((3.5, 3.25), (3.75, 3.5)),
                 oracles=[oracle("sum-not-mean", 1.0, 1.9876543)], findings=[finding("sum-not-mean")]),
            variant("near-miss-divided", "near-miss", losses=((2.25, 1.5), (2.75, 2.625)))]),
        report("09_hangs", [
            variant("correct", "correct", losses=()),
            variant("local-early-stop", "broken", losses=(), outcome="hang", reason="rank 1 left\nrank 0 waits",
                 findings=[finding("local-early-stop", sequence=9)],
                 stall={"operation": "allreduce", "sequence": 9, "group": "0", "step": 4, "ranks": [waits, absent]}),
            variant("never-named", "broken", losses=(), verdict="not-named", oracles=[oracle("never-named", 4.0, None, manifested=True)]),
            variant("needs-a-gpu", "broken", losses=(), outcome="skipped", reason="there is no GPU", verdict="skipped")]),
        report("16_hostile", [
            variant("correct", "correct", what=HOSTILE, part=HOSTILE),
            variant(HOSTILE, "broken", part=HOSTILE, what=HOSTILE, outcome="crash", reason=HOSTILE,
                 findings=[finding(HOSTILE, evidence=HOSTILE)], oracles=[oracle(HOSTILE, 0.0, 1.0, metric=HOSTILE)],
                 pictures=hostile_pictures())], title=HOSTILE, compiler=HOSTILE, cpu=HOSTILE, gpus=[HOSTILE]))


def hostile_pictures():
    picture = pictures(True)
    for call in picture["timeline"]["calls"]:
        call["op"] = HOSTILE
        call["group"] = HOSTILE if call["sequence"] > 3 else "0"
    return picture


def full_size(folder, lessons=17, each=16):
    """As many variants as the course has, each with as many pictures as a report may hold."""
    shuffle = random.Random(0)
    ids = list(range(256))
    for number in range(1, lessons + 1):
        variants = []
        for index in range(each):
            kind = ("correct", "broken", "near-miss")[min(index, 1) if index < 7 else 2]
            picture = copy.deepcopy(pictures(False))
            picture["divergence"] = [{"step": step, "distance": 1e-6 * shuffle.random()} for step in range(100)]
            picture["timeline"]["calls"] = [
                {"rank": rank, "sequence": call, "op": "allreduce", "group": "0", "entered_s": shuffle.random(),
                 "left_s": shuffle.random()} for rank in (0, 1) for call in range(40)]
            for drawn in picture["owners"]:
                shuffle.shuffle(ids)
                drawn.update(samples=256, ranks=[sorted(ids[:128]), sorted(ids[128:])])
            name = "correct" if index == 0 else f"pitfall-{number}-{index}"
            variants.append(variant(name, kind, losses=[[shuffle.random() for _ in range(5)]] * 2, pictures=picture,
                                    oracles=[oracle(name, 0.0, float(kind == "broken"))] * 3,
                                    findings=[finding(name)] if kind == "broken" else []))
        write(folder, report(f"{number:02d}_lesson", variants))
