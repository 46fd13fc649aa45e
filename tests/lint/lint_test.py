"""Rules of the sources that no compiler checks: who may include whom, that detectors go by nothing but the
trace's own words, that every test is built, that each pitfall is switched in one place and has a near miss or the
reason why not, that files stay short, that every pitfall has a page, every link leads somewhere, and what the source
articles say is in lessons (tests/lint/articles.json). Each rule is a function from a tree to a list of
complaints; the tests plant violations to see each rule fail, then ask for none in this tree.

Run: python3 tests/lint/lint_test.py   (standard library only)
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "reports"))
sys.dont_write_bytecode = True
import results  # noqa: E402

# Dependencies point one way: the folders of common/lockstep that a folder may include, beside itself.
MAY_INCLUDE = {
    "base": set(),
    "trace": {"base"},
    "archive": {"base"},
    "flight": {"base", "archive", "diagnose"},
    "diagnose": {"base", "trace"},
    "compare": {"base", "trace", "diagnose"},
    "launch": {"base", "trace", "diagnose"},
    "report": {"base", "trace", "diagnose", "launch"},
    "course": {"base", "trace", "compare", "diagnose", "flight", "launch", "report"},
    "gpu": {"base"},
    "observe": {"base"},
    "dist": {"base", "launch", "gpu", "observe"},
    "train": {"base", "dist", "observe"},
    "record": {"base", "launch", "dist", "observe", "prove", "trace"},
    "prove": {"base", "checkpoint", "dist", "launch", "observe", "train"},
    "checkpoint": {"base", "archive", "dist", "observe", "train"},
    "lesson": {"base", "launch", "gpu", "observe", "trace", "diagnose", "report", "dist", "train", "record", "checkpoint"},
}
TORCH_FREE = {"base", "launch", "gpu", "trace", "archive", "flight", "compare", "diagnose", "report", "course"}
# What an oracle measures with must not rest on what the detectors read.
ORACLES = {"lesson/reference", "lesson/figures", "lesson/outcome", "lesson/notes"}
NOT_FOR_ORACLES = {"trace", "diagnose", "record", "report"}
# Training that does by hand what the library would tell of: a result read early, gradients cleared in place, streams.
TELLS_IN_TRAINING = {"09_hanging_collective/async.cpp", "14_unused_parameters/optimizer.cpp",
                     "17_nccl_and_streams/streams.cpp"}
NOT_FOR_LESSONS = {"trace", "diagnose", "report", "course"}
# A detector is a function of the trace: it opens no file, asks no environment, and looks at no clock.
NOT_FOR_DETECTORS = {"filesystem", "fstream", "iostream", "cstdlib", "ctime", "regex", "thread", "unistd.h", "sys/stat.h",
                     "lockstep/base/file.h", "lockstep/base/environment.h", "lockstep/base/clock.h",
                     "lockstep/trace/attempts.h", "lockstep/trace/json.h", "lockstep/trace/writer.h"}
OUTSIDE_THE_TRACE = re.compile(r"\b(?:std::filesystem|getenv|ifstream|trace::read\w*|trace_file|launcher_file)\b")
# What a detector may compare a text with: words that the trace's own definition has.
TRACE_WORDS = ("trace/*event.h", "trace/trace.md")
# And names that PyTorch gives operations and types.
PYTORCH_WORDS = {"allgather", "alltoall", "barrier", "recv", "reduce", "scatter", "send", "bfloat16", "float", "float16"}
LEAST_NEAR_MISSES = 40
MOST_PITFALLS = 6
MOST_LINES = 400
MOST_RESULTS = 4000  # lines of all

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
FAULT = re.compile(r"""\bfault\(\s*"([a-z0-9-]+)"\s*\)""")
TEXT = r'"((?:[^"\\\n]|\\.)*)"'
LITERAL = re.compile(TEXT)
# phase == "train", "train" == phase, op.find("reduce")
COMPARED = re.compile(r"(?:[!=]=\s*|\b(?:find|rfind|has|has_word|starts_with|compare|count|contains)\([^()\"]*)" + TEXT +
                      "|" + TEXT + r"\s*[!=]=")
ORACLE = re.compile(r"^Measured (\w+)\([^)]*\) \{.*?^\}", re.MULTILINE | re.DOTALL)
OF_THE_TRACE = re.compile(r"\b(?:trace|record|diagnose|report|probes|told)(?:::|\(\)|\.)")
# Class and base; a member function's class; a function that knows which variant runs; a call of a probe.
DERIVED = re.compile(r"^class (\w+)[^;{]*: public (?:lockstep::)?(\w+)[^{;]*\{.*?^\};", re.MULTILINE | re.DOTALL)
MEMBER = re.compile(r"^[\w:<>&*, ]+?\b(\w+)::~?\w+\([^;{}]*\)[^;{}]*\{.*?^\}", re.MULTILINE | re.DOTALL)
TRAINING = re.compile(r"^[\w:<>&* ]+?\b(\w+)\([^;{}]*\bFault&[^;{}]*\) \{.*?^\}", re.MULTILINE | re.DOTALL)
PROBE = re.compile(r"\b(?:probes|told)\(")
COMMENT = re.compile(r"//[^\n]*")
NEAR_MISS = re.compile(r'\.name\s*=\s*"(near-miss-[a-z0-9-]+)",\s*\.slug\s*=\s*"([a-z0-9-]+)"')
NEAR = re.compile(r"^near: (.*)$", re.MULTILINE)  # a page's fact: the near misses, or why there are none
PAGE_SECTIONS = ["Symptom", "Why", "Fix", "The code", "In your own job", "Hints", "Links"]
LESSON_SECTIONS = ["What you will be able to do", "The idea", "A prediction to make", "Run it", "The answer", "The pitfalls",
                   "Exercise", "Further reading"]
PRINTED = ["The idea", "A prediction to make", "The answer", "The pitfalls", "Exercise"]  # by ./lockstep run
PAGE_COLUMNS = 80
FRONT_MATTER = r"(?:---\n(?:[a-z]+: \S.*\n)+---\n)?"
HINTS = 3
LESSONS_PAGE = "docs/lessons.md"
MOST_README_BYTES = 8192
# Phrases that no reader knows, and what to say. Prose only.
RETIRED = {
    r"(?:broken|correct|right|healthy) forms?": "variant",
    r"meeting files?": "rendezvous file",
    r"standstills?|st(?:ands?|ood) still": "stall",
    r"to the grave": "lost",
    r"throw-?away cop(?:y|ies)": "temporary copy",
    r"not gone on": "not resumed",
    r"has never heard of": "does not know",
    r"not the dice|different dice": "random numbers",
    r"behind autograd's back": "without a gradient",
    r"which is how the rule gets its name": "so it appears to",
    r"as many ranks as nodes": "one on each node",
}
INLINE_CODE = re.compile(r"`[^`]*`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
# Homes and work folders that only one person's machine has.
PRIVATE_PATH = re.compile(r"(?<![\w.$}/-])/(?:work|home|root|Users)/[\w.]+")


def pitfalls_in(text):
    """The pitfalls that a source switches, in order."""
    return [slug for slug in FAULT.findall(text) if not slug.startswith("near-miss-")]


def sources(folder):
    return sorted(p for p in folder.rglob("*") if p.suffix in (".h", ".cpp")) if folder.is_dir() else []


def lessons_of(root):
    return sorted(root.glob("lessons/[0-9][0-9]_*/"))


def includes(path):
    return INCLUDE.findall(path.read_text(encoding="utf-8"))


def lockstep_folder(include):
    parts = include.split("/")
    return parts[1] if parts[0] == "lockstep" and len(parts) > 2 else None


def check_library_includes(root):
    complaints = []
    library = root / "common" / "lockstep"
    for path in sources(library):
        name = path.relative_to(library)
        folder = name.parts[0]
        if folder not in MAY_INCLUDE:
            complaints.append(f"{name}: the folder {folder} has no rule in lint_test.py")
            continue
        oracle = str(name.with_suffix("")) in ORACLES
        for include in includes(path):
            other = lockstep_folder(include)
            if other and other != folder and other not in MAY_INCLUDE[folder]:
                complaints.append(f"{name} includes <{include}>: {folder} must not know {other}")
            if oracle and other in NOT_FOR_ORACLES:
                complaints.append(f"{name} includes <{include}>: an oracle must not use what detectors read")
            if folder in TORCH_FREE and include.split("/")[0] in ("torch", "c10", "ATen"):
                complaints.append(f"{name} includes <{include}>: {folder} is free of torch")
            if path.suffix == ".h" and include.startswith("nlohmann/"):
                complaints.append(f"{name} includes <{include}>: nlohmann/json belongs in .cpp files only")
    return complaints


def check_lesson_includes(root):
    complaints = []
    for path in sources(root / "lessons"):
        for include in includes(path):
            if lockstep_folder(include) in NOT_FOR_LESSONS:
                complaints.append(f"{path.relative_to(root)} includes <{include}>: a lesson and its oracle see "
                                  "neither traces nor verdicts")
    return complaints


def code_of(path):
    return COMMENT.sub("", path.read_text(encoding="utf-8"))


def notes_classes(codes):
    """[(class, its text)] of those that gather, beside the training, what oracles judge by: what derives from Notes, by
    whatever steps, with the functions that are defined outside of the class."""
    names, found = {"Notes"}, []
    classes = [(*each.groups(), each.group(0)) for code in codes for each in DERIVED.finditer(code)]
    for _ in classes:
        names |= {name for name, base, _ in classes if base in names}
    found += [(name, text) for name, base, text in classes if base in names]
    members = [(each.group(1), each.group(0)) for code in codes for each in MEMBER.finditer(code)]
    return found + [(name, text) for name, text in members if name in names]


def check_oracles_use_no_trace(root):
    """Lessons record events. Their oracles, and what these go by, in the same files, must not touch them."""
    library = root / "common" / "lockstep" / "lesson"
    found = [(path, f"the oracle {each.group(1)}", each.group(0))
             for path in sources(root / "lessons") + sources(library) for each in ORACLE.finditer(code_of(path))]
    found += [(path, "an oracle's part", code_of(path)) for path in sources(library)
              if f"lesson/{path.stem}" in ORACLES]
    for lesson in sorted(root.glob("lessons/*/")):
        found += [(lesson, f"what the oracles go by, {name},", text)
                  for name, text in notes_classes([code_of(path) for path in sources(lesson)])]
    return [f"{path.relative_to(root)}: {what} has {word}, which is of the trace"
            for path, what, text in found for word in sorted(set(OF_THE_TRACE.findall(text)))]


def check_training_calls_no_probe(root):
    """A training function is what a user would write. What only the program knows is told beside it, in a function with
    a name, or in a file of a folder support/."""
    complaints, calling = [], set()
    for path in sources(root / "lessons"):
        name = path.relative_to(root / "lessons").as_posix()
        calls = [each.group(1) for each in TRAINING.finditer(code_of(path)) if PROBE.search(each.group(0))]
        if not calls or "/support/" in name:
            continue
        calling.add(name)
        if name not in TELLS_IN_TRAINING:
            complaints.append(f"lessons/{name}: {', '.join(calls)} calls probes; a training function tells nothing")
    return complaints + [f"lessons/{name} calls no probe in its training any more: take it out of TELLS_IN_TRAINING"
                         for name in sorted(TELLS_IN_TRAINING - calling) if (root / "lessons" / name).is_file()]


def check_detectors_are_blind(root):
    library = root / "common" / "lockstep"
    words = set()
    for path in [path for name in TRACE_WORDS for path in library.glob(name)]:
        words |= set(re.findall(r'"([^"\n]+)"|`([^`\n]+)`', path.read_text(encoding="utf-8")))
    words = {word for pair in words for word in pair if word} | PYTORCH_WORDS
    lessons = {lesson.name for lesson in lessons_of(root)}
    complaints = []
    for path in sources(library / "diagnose"):
        code = COMMENT.sub("", path.read_text(encoding="utf-8"))
        name = f"diagnose/{path.name}"
        complaints += [f"{name} includes <{include}>: a detector sees the trace, and nothing else"
                       for include in includes(path) if include in NOT_FOR_DETECTORS]
        complaints += [f"{name} has {match}: a detector sees the trace, and nothing else"
                       for match in sorted(set(OUTSIDE_THE_TRACE.findall(code)))]
        for literal in sorted(set(LITERAL.findall(code))):
            if any(lesson in literal for lesson in lessons) or "near-miss" in literal:
                complaints.append(f'{name} has "{literal}": no detector knows a lesson or a variant')
        for pair in sorted(set(COMPARED.findall(code))):
            literal = pair[0] or pair[1]
            if re.search(r"[a-z]", literal, re.IGNORECASE) and literal not in words:
                complaints.append(f'{name} compares with "{literal}", which is no word of the trace\'s definition')
    return complaints


def check_near_misses(root):
    """A page's `near` has the near misses of its pitfall's lesson, or says why there are none."""
    complaints = []
    for lesson in lessons_of(root):
        text = "".join(path.read_text(encoding="utf-8") for path in sources(lesson))
        slugs, near = set(pitfalls_in(text)), NEAR_MISS.findall(text)
        complaints += [f"{lesson.name}: there is no pitfall {slug} for {name}" for name, slug in near if slug not in slugs]
        for slug in sorted(slugs):
            page = lesson / "pitfalls" / f"{slug}.md"
            said = NEAR.search(page.read_text(encoding="utf-8")) if page.is_file() else None
            has = ", ".join(name for name, of in near if of == slug)
            if not said or (said[1] != has if has else not said[1].startswith("none. ")):
                complaints.append(f"{lesson.name}: the page of {slug} has to say `near: {has or 'none. WHY'}`")
    return complaints


def is_globbed(name, cmake):
    """A file(GLOB list *.cpp) takes it, and no list(FILTER list EXCLUDE REGEX "...") leaves it out."""
    for variable in re.findall(r"file\s*\(\s*GLOB\s+(\w+)[^)]*?\s\*\.cpp[\s)]", cmake):
        excluded = re.findall(r"list\s*\(\s*FILTER\s+" + variable + r"\s+EXCLUDE\s+REGEX\s+\"([^\"]*)\"", cmake)
        if not any(re.search(pattern.replace(r"\\", "\\"), "/" + name) for pattern in excluded):
            return True
    return False


def check_tests_are_built(root):
    complaints = []
    for path in sorted(path for folder in ("tests", "evaluation") for path in (root / folder).rglob("*_test.cpp")):
        cmake = "".join(p.read_text(encoding="utf-8") for p in sorted(path.parent.iterdir())
                        if p.name == "CMakeLists.txt" or p.suffix == ".cmake")
        cmake = re.sub(r"#.*", "", cmake)
        named = re.search(r"(?<![\w/])" + re.escape(path.name) + r"(?!\w)", cmake)
        # A loop names it too: foreach(name a b) ... x_${name}_test.cpp.
        looped = any(re.search(r"(?<![\w/])" + re.escape(path.name) + r"(?!\w)", cmake.replace(f"${{{variable}}}", value))
                     for variable, values in re.findall(r"foreach\s*\(\s*(\w+)\s+([^)]*)\)", cmake)
                     for value in values.split())
        if not named and not looped and not is_globbed(path.name, cmake):
            complaints.append(f"{path.relative_to(root)} is named in no CMake file beside it")
    return complaints


def check_pitfalls(root):
    """A lesson switches each of its pitfalls in one place."""
    complaints = []
    lessons = root / "lessons"
    for lesson in sorted(p for p in lessons.iterdir() if p.is_dir()) if lessons.is_dir() else []:
        seen = {}
        for path in sources(lesson):
            text = path.read_text(encoding="utf-8")
            name = path.relative_to(root)
            if "fault.variant()" in text:
                complaints.append(f'{name}: fault.variant() hides a switch; ask fault("slug") once')
            slugs = pitfalls_in(text)
            if len(set(slugs)) > MOST_PITFALLS:
                complaints.append(f"{name}: {len(set(slugs))} pitfalls in a file; {MOST_PITFALLS} at most")
            for slug in slugs:
                if slug in seen:
                    complaints.append(f'{name}: fault("{slug}") is asked in {seen[slug]} already; once is right')
                seen[slug] = path.name
    return complaints


def check_lengths(root):
    complaints = []
    for folder in ("common", "lessons"):
        for path in sources(root / folder):
            count = len(path.read_text(encoding="utf-8").splitlines())
            if count > MOST_LINES:
                complaints.append(f"{path.relative_to(root)} has {count} lines; {MOST_LINES} at most")
    return complaints


def check_results(root):
    """Committed results are one record a line, and no more than somebody may read."""
    complaints = [f"{path.relative_to(root)} is not one record a line: python3 reports/results.py"
                  for path, columns in results.files(root).items()
                  if path.read_text(encoding="utf-8") != results.text(json.loads(path.read_text(encoding="utf-8")), columns)]
    lines = sum(path.read_bytes().count(b"\n") for path in root.glob("reports/results/*") if path.suffix != ".png")
    if lines > MOST_RESULTS:
        complaints.append(f"reports/results has {lines} lines; {MOST_RESULTS} at most. What no page quotes is not committed.")
    return complaints


def own_files(root):
    """The files under version control or about to be; all of them where there is no git."""
    try:
        listed = subprocess.run(["git", "-C", str(root), "ls-files", "-z", "-co", "--exclude-standard"],
                                capture_output=True, text=True, timeout=30, check=True).stdout
        return [root / name for name in listed.split("\0") if name]
    except (OSError, subprocess.SubprocessError):
        return [p for p in root.rglob("*") if not {"build", ".lockstep", "out", ".git"} & set(p.relative_to(root).parts)]


def sections(text):
    """[heading of the second level, what stands under it]"""
    parts = re.split(r"^## (.*)$", text, flags=re.MULTILINE)
    return [(name.strip(), body.strip()) for name, body in zip(parts[1::2], parts[2::2])]


def page_faults(slug, text):
    begins = re.match(FRONT_MATTER + rf"# {slug}: ", text)
    faults = [] if begins else [f'does not begin with "# {slug}: ", or with front matter and that']
    named = sections(text)
    if [name for name, _ in named] != PAGE_SECTIONS:
        faults.append("has other sections than " + ", ".join(PAGE_SECTIONS))
    faults += [f"says nothing under {name}" for name, body in named if not body]
    hints = re.findall(r"^(\d+)\. +\S", dict(named).get("Hints", ""), re.MULTILINE)
    if hints != [str(i) for i in range(1, HINTS + 1)]:
        faults.append(f"has hints {hints}; {HINTS}, numbered and filled, are right")
    # A link cannot be broken, nor can a fact.
    facts = len(re.match(FRONT_MATTER, text)[0].splitlines())
    prose = FENCED.sub(lambda code: "\n" * code[0].count("\n"), text)
    faults += [f"line {number} is longer than {PAGE_COLUMNS} columns" for number, line in enumerate(prose.splitlines(), 1)
               if number > facts and len(line) > PAGE_COLUMNS and "https://" not in line and " " in line]
    return faults


def check_pages(root):
    """`explain` and the hints of exercises have something to say about every pitfall, and of nothing else."""
    complaints = []
    for lesson in lessons_of(root):
        slugs = {slug for path in sources(lesson) for slug in pitfalls_in(path.read_text(encoding="utf-8"))}
        pages = {path.stem: path for path in lesson.glob("pitfalls/*.md")}
        complaints += [f"{lesson.name}: {slug} has no page pitfalls/{slug}.md" for slug in sorted(slugs - set(pages))]
        complaints += [f"{lesson.name}: pitfalls/{slug}.md is no pitfall's" for slug in sorted(set(pages) - slugs)]
        complaints += [f"{lesson.name}/pitfalls/{slug}.md {fault}" for slug in sorted(slugs & set(pages))
                       for fault in page_faults(slug, pages[slug].read_text(encoding="utf-8"))]
    return complaints


def check_articles(root):
    """tests/lint/articles.json: each thing that an article shows, or gets wrong, is a broken variant of a lesson, or stands in
    a section of its page."""
    complaints = []
    for letter, article in json.loads((root / "tests/lint/articles.json").read_text(encoding="utf-8"))["articles"].items():
        for row, lessons in [*article["shows"].items(), *article["wrong_or_unsaid"].items()]:
            if not any(lessons.values()):
                complaints.append(f"article {letter}, {row}: no lesson has it")
            for lesson, slugs in lessons.items():
                if isinstance(slugs, str):
                    text = (root / "lessons" / lesson / "lesson.md").read_text(encoding="utf-8")
                    if not dict(sections(text)).get(slugs):
                        complaints.append(f"article {letter}, {row}: {lesson}/lesson.md says nothing under {slugs}")
                    continue
                variants = {slug for path in sources(root / "lessons" / lesson)
                         for slug in pitfalls_in(path.read_text(encoding="utf-8"))}
                complaints += [f"article {letter}, {row}: {lesson} has no broken variant {slug}" for slug in slugs
                               if slug not in variants]
    return complaints


def check_lessons_page(root):
    """Its table has each lesson's pitfalls, and README a line for each lesson with what its page is called."""
    complaints = []
    readme, page = ((root / name).read_text(encoding="utf-8") for name in ("README.md", LESSONS_PAGE))
    for lesson in lessons_of(root):
        heading = (lesson / "lesson.md").read_text(encoding="utf-8").partition("\n")[0].partition(": ")[2]
        if f"](lessons/{lesson.name}/lesson.md) | {heading} |" not in readme:
            complaints.append(f"README.md has no line for {lesson.name} that says: {heading}")
        named = [name for name, body in sections((lesson / "lesson.md").read_text(encoding="utf-8")) if body]
        if [name for name in named if name in LESSON_SECTIONS] != LESSON_SECTIONS:
            complaints.append(f"{lesson.name}/lesson.md wants the sections {', '.join(LESSON_SECTIONS)}")
        complaints += [f"{lesson.name}/lesson.md: {name} is printed, and a line of its code is longer than {PAGE_COLUMNS} columns"
                       for name, body in sections((lesson / "lesson.md").read_text(encoding="utf-8")) if name in PRINTED
                       for line in body.splitlines() if line.startswith("    ") and len(line) > PAGE_COLUMNS]
        there = {path.stem for path in lesson.glob("pitfalls/*.md")}
        shown = set(re.findall(rf"\]\(\.\./lessons/{lesson.name}/pitfalls/([a-z0-9-]+)\.md\)", page))
        complaints += [f"{LESSONS_PAGE} lacks {lesson.name}'s {slug}" for slug in sorted(there - shown)]
        complaints += [f"{LESSONS_PAGE} has {slug}, which {lesson.name} has not" for slug in sorted(shown - there)]
    return complaints


def check_evidence(root):
    """Each figure under README's Evidence stands on a page of docs/, where it is explained."""
    section = (root / "README.md").read_text(encoding="utf-8").partition("\n## Evidence\n")[2].partition("\n## ")[0]
    pages = " ".join(path.read_text(encoding="utf-8") for path in sorted((root / "docs").glob("*.md")))
    return [f"README.md's Evidence says {figure}, and no page of docs/ does"
            for figure in re.findall(r"\d[\d.,]*\d", section)
            if not re.search(rf"(?<![\d.,]){re.escape(figure)}(?![\d])", pages)]


def check_phrases(root):
    complaints = []
    for path in (path for path in own_files(root) if path.suffix == ".md" and path.is_file()):
        text = INLINE_CODE.sub("", FENCED.sub("", path.read_text(encoding="utf-8")))
        prose = " ".join(line for line in text.splitlines() if not line.startswith("    "))
        complaints += [f'{path.relative_to(root)}: "{found}": say "{instead}"' for phrase, instead in RETIRED.items()
                       for found in re.findall(rf"\b(?:{phrase})\b", " ".join(prose.split()), re.IGNORECASE)]
    return complaints


def anchors(path):
    """What GitHub calls the headings of a page."""
    text = FENCED.sub("", path.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ +(.*?) *$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def check_links(root):
    """Links between the repository's own pages."""
    complaints = []
    for path in (path for path in own_files(root) if path.suffix == ".md" and path.is_file()):
        for target in LINK.findall(FENCED.sub("", path.read_text(encoding="utf-8"))):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            to = path.parent / name if name else path
            if not to.exists():
                complaints.append(f"{path.relative_to(root)}: there is no {target}")
            elif anchor and to.suffix == ".md" and anchor not in anchors(to):
                complaints.append(f"{path.relative_to(root)}: {name or path.name} has no heading for #{anchor}")
    return complaints


def check_private_paths(root):
    complaints = []
    for path in own_files(root):
        if not path.is_file():
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            match = PRIVATE_PATH.search(line)
            if match:
                complaints.append(f"{path.relative_to(root)}:{number}: {match.group()} exists on one machine only")
    return complaints


class ThisTree(unittest.TestCase):
    def assert_none(self, complaints):
        self.assertEqual(complaints, [], "\n" + "\n".join(complaints))

    def test_it_is_looked_at(self):
        self.assertGreater(len(sources(ROOT / "common")), 20)
        self.assertGreater(len(own_files(ROOT)), 50)
        self.assertTrue(any(pitfalls_in(p.read_text(encoding="utf-8")) for p in sources(ROOT / "lessons")))

    def test_library_includes(self):
        self.assert_none(check_library_includes(ROOT))

    def test_lesson_includes(self):
        self.assert_none(check_lesson_includes(ROOT))
        self.assert_none(check_oracles_use_no_trace(ROOT))
        self.assert_none(check_training_calls_no_probe(ROOT))
        gathering = [notes_classes([code_of(path) for path in sources(lesson)]) for lesson in lessons_of(ROOT)]
        self.assertGreater(sum(map(len, gathering)), 20)

    def test_detectors_are_blind(self):
        self.assert_none(check_detectors_are_blind(ROOT))

    def test_near_misses(self):
        self.assert_none(check_near_misses(ROOT))
        pages = [page.read_text(encoding="utf-8") for page in ROOT.glob("lessons/*/pitfalls/*.md")]
        self.assertGreaterEqual(sum("\nnear: near-miss-" in page for page in pages), LEAST_NEAR_MISSES)

    def test_every_test_is_built(self):
        self.assert_none(check_tests_are_built(ROOT))

    def test_pitfalls(self):
        self.assert_none(check_pitfalls(ROOT))

    def test_pages(self):
        self.assert_none(check_pages(ROOT))

    def test_links(self):
        self.assert_none(check_links(ROOT))
        self.assertTrue(any(LINK.search(p.read_text(encoding="utf-8")) for p in own_files(ROOT) if p.suffix == ".md"))

    def test_articles(self):
        self.assert_none(check_articles(ROOT))

    def test_lessons_page(self):
        self.assert_none(check_lessons_page(ROOT))

    def test_evidence(self):
        self.assert_none(check_evidence(ROOT))
        self.assertLessEqual((ROOT / "README.md").stat().st_size, MOST_README_BYTES)

    def test_phrases(self):
        self.assert_none(check_phrases(ROOT))

    def test_lengths(self):
        self.assert_none(check_lengths(ROOT))

    def test_results(self):
        self.assert_none(check_results(ROOT))

    def test_private_paths(self):
        self.assert_none(check_private_paths(ROOT))


class PlantedViolations(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def plant(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def assert_one(self, complaints, *texts):
        self.assertEqual(len(complaints), 1, complaints)
        for text in texts:
            self.assertIn(text, complaints[0])

    def test_wrong_direction(self):
        self.plant("common/lockstep/train/a.h", "#include <lockstep/base/error.h>\n#include <lockstep/record/probes.h>\n")
        self.assert_one(check_library_includes(self.root), "train must not know record")

    def test_diagnose_knows_no_lesson(self):
        self.plant("common/lockstep/diagnose/a.cpp", '  #  include "lockstep/lesson/lesson.h"\n')
        self.assert_one(check_library_includes(self.root), "diagnose must not know lesson")

    def test_torch_in_a_torch_free_folder(self):
        for header in ("torch/torch.h", "c10/util/Exception.h", "ATen/ATen.h"):
            self.plant("common/lockstep/report/a.cpp", f"#include <{header}>\n")
            self.assert_one(check_library_includes(self.root), "free of torch")

    def test_json_in_a_header(self):
        self.plant("common/lockstep/trace/a.cpp", "#include <nlohmann/json.hpp>\n")
        self.assertEqual(check_library_includes(self.root), [])
        self.plant("common/lockstep/trace/b.h", "#include <nlohmann/json.hpp>\n")
        self.assert_one(check_library_includes(self.root), "b.h", ".cpp files only")

    def test_new_folder_needs_a_rule(self):
        self.plant("common/lockstep/novel/a.h", "")
        self.assert_one(check_library_includes(self.root), "no rule")

    def test_oracles(self):
        self.plant("common/lockstep/lesson/reference.cpp", "#include <lockstep/trace/reader.h>\n")
        self.assert_one(check_library_includes(self.root), "an oracle")
        self.plant("lessons/09_x/oracle.cpp", "#include <lockstep/diagnose/diagnose.h>\n")
        self.assert_one(check_lesson_includes(self.root), "oracle.cpp")

    def test_oracle_that_reads_the_trace(self):
        right = "void train() {\n  probes.loss(x);\n}\nMeasured a(const Outcomes& all) {\n  return {all[0].x};\n}\n"
        self.plant("lessons/01_a/a.cpp", right)
        self.assertEqual(check_oracles_use_no_trace(self.root), [])
        for word in ("trace::read(x)", "diagnose::diagnose(x)", "context.probes()"):
            self.plant("lessons/01_a/a.cpp", right + "Measured b(const Outcomes& all) {\n  " + word + ";\n}\n")
            self.assert_one(check_oracles_use_no_trace(self.root), "the oracle b")

    def test_what_an_oracle_goes_by_and_the_trace(self):
        right = ("class Plain : public lockstep::Notes {\n  void loss() { x(); }\n};\n"
                 "void tell() {\n  context.told().tell(x);\n}\n")
        derived = "class Own final : public Plain {\n  %s\n};\n"
        self.plant("lessons/01_a/plain.h", right)
        self.plant("lessons/01_a/a.cpp", derived % "int x_;" + "void Own::finish() const {\n  y();\n}\n")
        self.assertEqual(check_oracles_use_no_trace(self.root), [])
        self.plant("lessons/01_a/a.cpp", derived % "void a() { context().told().flush(); }")
        self.assert_one(check_oracles_use_no_trace(self.root), "Own", "told()")
        self.plant("lessons/01_a/a.cpp", derived % "int x_;" + "double Own::figure(int a) {\n  return record::x(a);\n}")
        self.assert_one(check_oracles_use_no_trace(self.root), "Own", "record::")
        self.plant("lessons/01_a/a.cpp", "")
        self.plant("common/lockstep/lesson/notes.cpp", "// trace::x\nvoid Notes::a() {\n  trace::read(x);\n}\n")
        self.assert_one(check_oracles_use_no_trace(self.root), "lesson/notes.cpp", "trace::")

    def test_training_that_calls_a_probe(self):
        helper = "// A near miss.\nvoid tell(RankContext& context) {\n  context.told().flush();\n}\n\n"
        train = "void train(RankContext& context,\n           const Fault& fault) {\n  %s\n}\n"
        self.plant("lessons/01_a/a.cpp", helper + train % "tell(context);")
        self.assertEqual(check_training_calls_no_probe(self.root), [])
        for call in ("context.told().flush();", "auto& probes = context.probes();"):
            self.plant("lessons/01_a/a.cpp", helper + train % call)
            self.assert_one(check_training_calls_no_probe(self.root), "01_a/a.cpp: train calls probes")
        self.plant("lessons/01_a/support/a.cpp", train % "context.told().flush();")
        self.plant("lessons/01_a/a.cpp", "")
        self.assertEqual(check_training_calls_no_probe(self.root), [])
        known = min(TELLS_IN_TRAINING)
        self.plant(f"lessons/{known}", train % "context.told().flush();")
        self.assertEqual(check_training_calls_no_probe(self.root), [])
        self.plant(f"lessons/{known}", helper)
        self.assert_one(check_training_calls_no_probe(self.root), known, "take it out")

    def test_detectors_that_see_more_than_the_trace(self):
        self.plant("common/lockstep/trace/event.h", 'std::string phase;  // "train"\n')
        self.plant("lessons/05_set_epoch/lesson.cpp", "")
        right = '#include <algorithm>\n// 05_set_epoch\nif (phase == "train") return "trains " + name;\n'
        self.plant("common/lockstep/diagnose/a.cpp", right)
        self.assertEqual(check_detectors_are_blind(self.root), [])
        for wrong, text in (("#include <fstream>\n", "<fstream>"),
                            ("#include <lockstep/base/file.h>\n", "base/file.h"),
                            ("trace::read(folder);\n", "trace::read"),
                            ('auto name = "05_set_epoch";\n', "no detector knows a lesson"),
                            ('auto name = "near-miss-x";\n', "no detector knows a lesson"),
                            ('if (error == "timed out") {\n', '"timed out"'),
                            ('if ("timed out" != error) {\n', '"timed out"'),
                            ('if (what.find("reset by peer") != npos) {\n', '"reset by peer"')):
            self.plant("common/lockstep/diagnose/a.cpp", right + wrong)
            self.assert_one(check_detectors_are_blind(self.root), text)

    def test_near_miss_or_the_reason_why_not(self):
        code = 'fault("one-thing") fault("other-thing")\n{.name = "near-miss-x",\n .slug = "one-thing",\n'
        self.plant("lessons/01_a/a.cpp", code)
        self.plant("lessons/01_a/pitfalls/one-thing.md", "---\nnear: near-miss-x\n---\n")
        self.assert_one(check_near_misses(self.root), "other-thing", "none. WHY")
        self.plant("lessons/01_a/pitfalls/other-thing.md", "---\nnear: none. It throws.\n---\n")
        self.assertEqual(check_near_misses(self.root), [])
        self.plant("lessons/01_a/pitfalls/one-thing.md", "---\nnear: none. It throws.\n---\n")
        self.assert_one(check_near_misses(self.root), "one-thing", "near-miss-x")
        self.plant("lessons/01_a/pitfalls/one-thing.md", "---\nnear: near-miss-x\n---\n")
        self.plant("lessons/01_a/a.cpp", code + '{.name = "near-miss-y",\n .slug = "third",\n')
        self.assert_one(check_near_misses(self.root), "no pitfall third")

    def test_forgotten_test(self):
        self.plant("tests/unit/a_test.cpp", "")
        self.plant("tests/unit/CMakeLists.txt", "# a_test.cpp\nadd_lockstep_test(aa SOURCES aa_test.cpp)\n")
        self.assert_one(check_tests_are_built(self.root), "a_test.cpp")
        self.plant("tests/unit/more.cmake", "add_lockstep_test(a SOURCES a_test.cpp)\n")
        self.assertEqual(check_tests_are_built(self.root), [])

    def test_forgotten_in_a_loop(self):
        self.plant("tests/unit/a_test.cpp", "")
        self.plant("tests/unit/b_test.cpp", "")
        self.plant("tests/unit/CMakeLists.txt", "foreach(name a\n c)\n  add_lockstep_test(x SOURCES ${name}_test.cpp)\n")
        self.assert_one(check_tests_are_built(self.root), "b_test.cpp")

    def test_forgotten_by_a_glob(self):
        self.plant("tests/unit/a_test.cpp", "")
        self.plant("tests/unit/b_test.cpp", "")
        glob = "file(GLOB _sources CONFIGURE_DEPENDS *.cpp)\n"
        self.plant("tests/unit/CMakeLists.txt", glob)
        self.assertEqual(check_tests_are_built(self.root), [])
        self.plant("tests/unit/CMakeLists.txt", glob + r'list(FILTER _sources EXCLUDE REGEX "/(b_test|c)\\.cpp$")')
        self.assert_one(check_tests_are_built(self.root), "b_test.cpp")
        self.plant("tests/unit/b.cmake", "add_lockstep_test(b SOURCES b_test.cpp)\n")
        self.assertEqual(check_tests_are_built(self.root), [])

    def test_pitfall_twice_hidden_and_too_many(self):
        once = 'if (fault("one-thing")) {\n}\n'
        self.plant("lessons/01_a/a.cpp", once + 'if (fault("near-miss-x") || fault("near-miss-x")) {\n}\n')
        self.plant("lessons/02_b/b.cpp", once)  # another lesson's, allowed
        self.assertEqual(check_pitfalls(self.root), [])
        self.plant("lessons/01_a/b.cpp", once)
        self.assert_one(check_pitfalls(self.root), "one-thing", "in a.cpp already")
        self.plant("lessons/01_a/b.cpp", "".join(f'fault("thing-{i}")\n' for i in range(7)))
        self.assert_one(check_pitfalls(self.root), "7 pitfalls")
        self.plant("lessons/01_a/b.cpp", 'fault("other")\nfault("other")\n')
        self.assert_one(check_pitfalls(self.root), "other", "in b.cpp already")
        self.plant("lessons/01_a/b.cpp", "fault.variant() == x;\n")
        self.assert_one(check_pitfalls(self.root), "hides")

    def test_page_that_is_missing_nobodys_or_not_filled(self):
        self.plant("lessons/01_a/a.cpp", 'fault("one-thing")\n')
        self.assert_one(check_pages(self.root), "one-thing has no page")
        right = ("# one-thing: goes wrong\n" + "".join(f"\n## {name}\ntext\n" for name in PAGE_SECTIONS)).replace(
            "## Hints\ntext", "## Hints\n1. Look.\n2. It is\n   there.\n3. Do.")
        page = "lessons/01_a/pitfalls/one-thing.md"
        self.plant(page, right + f"- https://{'x' * PAGE_COLUMNS}\n")
        self.assertEqual(check_pages(self.root), [])
        for before, after, text in (("# one-thing: ", "# another: ", "does not begin"),
                                    ("## Fix\ntext\n", "", "other sections"), ("## Fix\ntext", "## Fix\n", "under Fix"),
                                    ("3. Do.", "", "hints ['1', '2']"), ("3. Do.", "3. ", "hints ['1', '2']"),
                                    ("text", "x" * (PAGE_COLUMNS + 1) + " text", "longer than")):
            self.plant(page, right.replace(before, after, 1))
            self.assert_one(check_pages(self.root), "one-thing.md", text)
        self.plant(page, right)
        self.plant("lessons/01_a/pitfalls/other.md", right)
        self.assert_one(check_pages(self.root), "other.md is no pitfall's")

    def test_dead_link(self):
        self.plant("docs/a.md", "# One `two` three\n[b](../b.md), [web](https://a.example/x), [here](#one-two-three)\n")
        self.plant("b.md", "[a](docs/a.md#one-two-three)\n```\n[in code](nowhere)\n```\n")
        self.assertEqual(check_links(self.root), [])
        self.plant("b.md", "[a](docs/no.md)")
        self.assert_one(check_links(self.root), "b.md", "docs/no.md")
        self.plant("b.md", "[a](docs/a.md#four)")
        self.assert_one(check_links(self.root), "b.md", "#four")

    def test_article_that_no_lesson_has(self):
        self.plant("lessons/01_a/a.cpp", 'fault("one-thing")\n')
        self.plant("lessons/01_a/lesson.md", "# 01 a: b\n\n## Why\nIt is so.\n\n## Hints\n")
        for row, text in (({"01_a": ["one-thing"]}, None), ({}, "no lesson has it"), ({"01_a": []}, "no lesson has it"),
                          ({"01_a": "Why"}, None), ({"01_a": "Hints"}, "nothing under Hints"),
                          ({"02_b": ["one-thing"]}, "02_b has no"),
                          ({"01_a": ["other-thing"]}, "no broken variant other-thing")):
            for kind in ("shows", "wrong_or_unsaid"):
                rows = {"shows": {}, "wrong_or_unsaid": {}, kind: {"a row": row}}
                self.plant("tests/lint/articles.json", json.dumps({"articles": {"A": rows}}))
                if text:
                    self.assert_one(check_articles(self.root), "article A", text)
                else:
                    self.assertEqual(check_articles(self.root), [])

    def test_lesson_or_pitfall_that_no_page_lists(self):
        self.plant("lessons/01_a/pitfalls/one-thing.md", "")
        page = "# 01 a: one thing\n" + "".join(f"\n## {name}\ntext\n" for name in LESSON_SECTIONS)
        self.plant("lessons/01_a/lesson.md", page)
        self.plant("README.md", "| [01](lessons/01_a/lesson.md) | one thing |\n")
        right = "[one](../lessons/01_a/pitfalls/one-thing.md)"
        self.plant("docs/lessons.md", right)
        self.assertEqual(check_lessons_page(self.root), [])
        self.plant("lessons/01_a/lesson.md", page.replace("## The answer\ntext", "## The answer"))
        self.assert_one(check_lessons_page(self.root), "wants the sections")
        self.plant("lessons/01_a/lesson.md", page)
        self.plant("docs/lessons.md", right + "[other](../lessons/01_a/pitfalls/other.md)")
        self.assert_one(check_lessons_page(self.root), "has other")
        self.plant("docs/lessons.md", "")
        self.assert_one(check_lessons_page(self.root), "lacks 01_a's one-thing")
        self.plant("docs/lessons.md", right)
        self.plant("README.md", "")
        self.assert_one(check_lessons_page(self.root), "README.md has no line for 01_a")

    def test_evidence_that_no_page_has(self):
        self.plant("docs/a.md", "1,215 of them, 0.71 in all, 10.53\n")
        self.plant("README.md", "5,000\n## Evidence\n\n1,215, and 0.71.\n\n## Limits\n\n6,000\n")
        self.assertEqual(check_evidence(self.root), [])
        self.plant("README.md", "\n## Evidence\n\n0.53 of them\n")
        self.assert_one(check_evidence(self.root), "Evidence says 0.53")

    def test_phrase_that_is_retired(self):
        self.plant("docs/a.md", "`standstill` and a standing order\n\n    the broken form\n```\na broken form\n```\n")
        self.assertEqual(check_phrases(self.root), [])
        for phrase in ("Every broken\nform", "a Standstill", "it stood still"):
            self.plant("docs/a.md", phrase + " is here.\n")
            self.assert_one(check_phrases(self.root), "docs/a.md", "say")

    def test_long_file(self):
        self.plant("lessons/01_a/a.cpp", "\n" * MOST_LINES)
        self.assertEqual(check_lengths(self.root), [])
        self.plant("common/lockstep/base/a.h", "\n" * (MOST_LINES + 1))
        self.assert_one(check_lengths(self.root), "401 lines")

    def test_results_of_many_lines(self):
        self.plant("reports/results/a.json", '{\n "runs": [1, 2]\n}\n')
        self.assertEqual(check_results(self.root), [])
        self.plant("reports/results/b.json", '{\n "runs": [\n  1, 2]}\n')
        self.assert_one(check_results(self.root), "b.json", "one record a line")
        self.plant("reports/results/b.json", results.text([{"run": "x" * 400}] * MOST_RESULTS))
        self.assert_one(check_results(self.root), f"{MOST_RESULTS} at most")

    def test_private_path(self):
        self.plant("README.md", "see $HOME/home/here and https://a.example/home/page and /usr/include\n")
        self.assertEqual(check_private_paths(self.root), [])
        self.plant("notes.md", "line\nin /" + "home/somebody/code\n")
        self.assert_one(check_private_paths(self.root), "notes.md:2")


if __name__ == "__main__":
    unittest.main(verbosity=1)
