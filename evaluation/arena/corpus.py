"""Makes the arena's corpus: programs whose truth is known, for any checker of data-parallel training in PyTorch.

usage: python3 evaluation/arena/corpus.py CORPUS                                           the public split
       python3 evaluation/arena/corpus.py CORPUS --seed N [--faults 40] [--benign 20]      a hidden split

CORPUS is a new folder. The same arguments make the same bytes. docs/arena.md, which goes along as its README.md, says
what is in it. A case of a hidden split is a program of the public one with one of its faults, or none, together with
benign changes, other seeds, and on two or three ranks. Standard library only.
"""

import argparse
import ast
import collections
import dataclasses
import hashlib
import json
import pathlib
import random
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE, TESTS = ROOT / "evaluation" / "arena", ROOT / "python" / "tests"
CHANGES, THREADS = (ROOT / "evaluation" / name for name in ("sets/eighth/python", "threads"))
HARNESS = ROOT / "lessons" / "python"  # of the lessons' programs in Python
sys.path[:0] = [str(ROOT / path) for path in ("evaluation/sets", "evaluation/pytorch_means", "lessons/python")]
import edits  # noqa: E402
from handed_out import broken, right, without_the_answer  # noqa: E402
from programs import ATTEMPTS, TRUTHS, started  # noqa: E402
from truths import NODES, record_of  # noqa: E402
from vocabulary import GENERIC, WORDS  # noqa: E402

VERSION = 3
RANKS = 2
PROGRAM = "train.py"
# Of a hidden split: bases that run on three ranks, and oracles that look at any number of ranks.
ON_THREE = ("leaves", "pupils")
OF_ANY = ("fails", "ranks_differ", "trains_other", "worse", "repeats_data", "reported_wrong", "same_weights", "same_quality")
MOST_BENIGN = 2  # changes beside a fault
MOST_TRIES = 100  # to draw changes that fit together
LITERAL_SEED = re.compile(r"(?<=manual_seed\()(\d+)")
LINK = re.compile(r"\[([^\]]*)\]\((?!https:)[^)]*\)")
DATASHEET = ROOT / "docs" / "arena.md"
# What goes along, so that a corpus is used without this repository.
ALONG = {"LICENSE": ROOT / "LICENSE", "start.py": TESTS / "start.py",
         "score.py": HERE / "score.py", "scoring.py": ROOT / "evaluation" / "scoring.py",
         "findings.schema.json": HERE / "findings.schema.json",
         "truth.schema.json": ROOT / "reports" / "schema" / "truth.schema.json"}


class CorpusError(Exception):
    pass


@dataclasses.dataclass
class Case:
    """`truth` is what is scored by; `right` is the right program, by which an oracle judges, "" where there is none."""
    program: str
    right: str
    truth: dict
    modules: tuple = ()
    ranks: int = RANKS
    nodes: int = 1
    attempts: int = 1

    @property
    def id(self):
        """A name that tells nothing."""
        return hashlib.sha256(f"{VERSION} {self.truth['split']} {self.truth['set']} {self.truth['name']}".encode()).hexdigest()[:10]


def text(path):
    return path.read_text(encoding="utf-8")


def changes():
    """Of each base its edits."""
    bases = collections.defaultdict(list)
    for edit in edits.read(CHANGES).values():
        bases[edit["base"]].append(edit)
    return bases


def words(names):
    """One of which is in a message that names the fault without our names."""
    return [(WORDS | GENERIC)[name] for name in names]


def truth_of_edit(edit):
    """What sets/eighth/python/*.json says of it, in the words of the corpus."""
    truth = edit["truth"]
    if truth["kind"] == "benign":
        return {**truth, "class": "benign", "what": edit["story"], "oracle": edit["oracle"]}
    return {**truth, "words": words(truth["names"]), "oracle": edit["oracle"]}


def from_changes():
    for base, of_base in changes().items():
        source = text(CHANGES / f"{base}.py")
        for edit in of_base:
            truth = {"split": "public", "set": "changes", "name": edit["name"], "base": base, **truth_of_edit(edit)}
            yield Case(edits.applied(source, edit), source, truth, attempts=edits.attempts(base))


def modules_of(source, folder):
    """The files of a folder that a program imports, and those that these import."""
    found, asked = {}, [source]
    while asked:
        for node in ast.walk(ast.parse(asked.pop())):
            names = [node.module] if isinstance(node, ast.ImportFrom) else [
                name.name for name in node.names] if isinstance(node, ast.Import) else []
            for path in (folder / f"{name}.py" for name in names):
                if path.exists() and path not in found:
                    found[path] = None
                    asked.append(text(path))
    return tuple(found)


def from_twins():
    """The lessons' pitfalls in Python, each right and with its fault."""
    done = set()
    for slug, truth in TRUTHS.items():
        base, common = truth["program"], {"split": "public", "set": "lessons", "base": truth["program"]}
        good = right(slug)
        more = {"modules": modules_of(good, HARNESS), "nodes": NODES.get(base, 1), "attempts": ATTEMPTS.get(base, 1)}
        if base not in done:
            done.add(base)
            yield Case(good, good, {**common, "name": f"right-{base}", "kind": "benign", "class": "benign",
                                    "what": "The program is right.", "oracle": "twin"}, **more)
        bad = without_the_answer(broken(slug), good)
        yield Case(bad, good, {**common, "name": slug, **record_of(slug), "class": "lesson", "what": truth.get("note", ""),
                               "words": words([slug]), "oracle": "twin"}, **{**more, "modules": modules_of(bad, HARNESS)})


def from_others():
    for name, truth in json.loads(text(THREADS / "truths.json")).items():
        yield Case(text(THREADS / f"{name}.py"), "", {
            "split": "public", "set": "threads", "name": name, "base": name, **truth, "class": "thread",
            "what": f"As in the issue thread {truth['thread']}.", "words": words(truth["names"]), "oracle": None},
            attempts=truth.get("attempts", 1))


def public():
    return [*from_changes(), *from_twins(), *from_others()]


def drawn(number, draw, kind, split, every):
    """One case of a hidden split; raises EditError where the changes do not fit together."""
    base = draw.choice(sorted(every))
    unchanged = [edit for edit in every[base] if edit["truth"]["kind"] == "benign" and edit["oracle"] == "same_weights"]
    subject = draw.choice([edit for edit in every[base] if edit["truth"]["kind"] == kind])
    beside = draw.sample(unchanged, min(draw.randint(0, MOST_BENIGN), len(unchanged)))
    by = draw.randint(1, 999)
    good = LITERAL_SEED.sub(lambda seed: str(int(seed[1]) + by), text(CHANGES / f"{base}.py"))
    for edit in beside:
        if edit is not subject:
            good = edits.applied(good, edit)
    truth = {"ranks": "all", "step": None, **subject["truth"]}
    can = base in ON_THREE and subject["oracle"] in OF_ANY and truth["ranks"] == "all" and truth["step"] in (0, None)
    ranks = draw.choice((2, 3)) if can else RANKS
    made_of = [edit["name"] for edit in (subject, *beside)]
    # The subject's own replacements know the seeds that the program had.
    moved = {**subject, "edits": [{key: LITERAL_SEED.sub(lambda seed: str(int(seed[1]) + by), change[key])
                                   for key in ("was", "is")} for change in subject["edits"]]}
    return Case(edits.applied(good, moved), good, {
        "split": split, "set": "drawn", "name": f"{number}-{subject['name']}", "base": base, "made_of": made_of,
        **truth_of_edit(subject)}, ranks=ranks, attempts=edits.attempts(base))


def hidden(seed, faults, benign):
    draw, every = random.Random(seed), changes()
    cases = []
    for number, kind in enumerate(["fault"] * faults + ["benign"] * benign):
        for _ in range(MOST_TRIES):
            try:
                one = drawn(number, draw, kind, f"seed {seed}", every)
            except edits.EditError:
                continue  # two changes of one line
            if all(one.program != other.program for other in cases):
                cases.append(one)
                break
        else:
            raise CorpusError(f"seed {seed}: no other {kind} was found in {MOST_TRIES} draws; ask for fewer cases")
    return cases


def command(case):
    """The words of the command that runs it in its folder: PYTHON stands for an interpreter with torch, OUT for an empty folder."""
    plain = {sys.executable: "PYTHON", str(TESTS / "start.py"): "../../start.py"}
    begun = [plain.get(str(word), str(word)) for word in started(PROGRAM, "OUT", case.attempts, case.ranks)]
    return [*(["env", f"NODES={case.nodes}"] if case.nodes > 1 else []), *begun]


def as_bytes(value):
    return (json.dumps(value, indent=1) + "\n").encode()


def files_of(cases, split):
    """{path: bytes} of a corpus. What a checker may see is under cases/, what is known under truths/."""
    found = {path: source.read_bytes() for path, source in ALONG.items()}
    found["README.md"] = LINK.sub(r"\1", text(DATASHEET)).encode()  # to other pages of this repository
    for case in sorted(cases, key=lambda one: one.id):
        seen, known = f"cases/{case.id}", f"truths/{case.id}"
        if f"{seen}/{PROGRAM}" in found:
            raise CorpusError(f"two cases have the id {case.id}: rename {case.truth['name']}")
        found[f"{seen}/{PROGRAM}"] = case.program.encode()
        found |= {f"{seen}/{path.name}": path.read_bytes() for path in case.modules}
        found[f"{seen}/case.json"] = as_bytes({"schema_version": 1, "id": case.id, "ranks": case.ranks, "nodes": case.nodes,
                                               "attempts": case.attempts, "program": PROGRAM, "command": command(case)})
        found[f"{known}/truth.json"] = as_bytes({"schema_version": 2, "id": case.id, **case.truth})
        if case.right:
            found[f"{known}/right.py"] = case.right.encode()
    found["manifest.json"] = as_bytes({"corpus_version": VERSION, "split": split, "cases": len(cases), "counts": counts(cases)})
    sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {path}\n" for path, data in sorted(found.items()))
    return {**found, "SHA256SUMS": sums.encode()}


def counts(cases):
    """{set: how many programs, faults and benign cases}"""
    sets = collections.defaultdict(lambda: {"programs": set(), "faults": 0, "benign": 0})
    for case in cases:
        one = sets[case.truth["set"]]
        one["programs"].add(case.truth["base"])
        one["faults" if case.truth["kind"] == "fault" else "benign"] += 1
    return {name: {**one, "programs": len(one["programs"])} for name, one in sets.items()}


def write(folder, found):
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CorpusError(f"{folder} is there already; name a new or empty folder")
    for path, data in found.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--benign", type=int, default=20)
    options = parser.parse_args(arguments)
    if min(options.faults, options.benign) < 0 or options.faults + options.benign == 0:
        parser.error(f"--faults {options.faults} --benign {options.benign}: there must be a case; say how many, from 0 on")
    try:
        cases = public() if options.seed is None else hidden(options.seed, options.faults, options.benign)
        write(options.corpus, files_of(cases, "public" if options.seed is None else f"seed {options.seed}"))
    except (CorpusError, edits.EditError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    for name, one in counts(cases).items():
        print(f"{name}: {one['programs']} programs, {one['faults']} faults, {one['benign']} benign")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
