"""The full tier: what takes too long for every change. ./lockstep test --tier full [PHASE ...]

Each phase runs by itself and is reported by itself; the dated result goes to reports/results/full_tier.json,
phase by phase, so that a phase run alone replaces its own entry only.

  quick        the quick tier, as a base
  repeats      every broken variant 20 times in a row, rotating world sizes 2, 3, 4 and seeds 0 to 19
  world-sizes  every variant on 1, 8 and 16 ranks
  gcc          everything built by g++, the quick tier
  newest       everything against LibTorch 2.15.0, each file compiled by itself, the quick tier
  sanitizers   the torch-free libraries and their tests under address and undefined-behaviour sanitizers; those with
               threads and processes under the thread sanitizer
  matrix       what our detectors name, of every variant on 2, 3, 4 and 8 ranks with seeds 0 to 2, at each level
               (evaluation/matrix.py): two hours and more
  mutants      three programs under every operator, on 2 and 3 ranks: what is found of faults without a lesson
  side-by-side pitfalls as Python programs under PyTorch's own means
  compare      right runs of one training are equal to rounding, and silent variants part from right ones where they should
  silence      what each silent pitfall costs, ten seeds
  exercises    every lesson's exercise fails as it is handed out, and passes as the lesson has it
  py-exercises the same of every Python program's
  consumer     another project that takes this one as a subdirectory, as docs/library.md shows
  install      pip builds and installs the Python package, for the torch that is set up and for LibTorch 2.15.0: it
               names a fault, passes its own tests, and refuses the other torch
  changes      small changes to right Python programs: oracles that see no trace confirm which are faults, and which harmless
  changes-cpp  the same of C++ programs
  pictures     what the lessons' pictures are drawn from, measured again: all but the times is as it was written

Tests that the quick tier leaves out, by their names in ctest:

  lessons.compare_builds  tests/lessons/compare_builds.py on programs that pretend to be lessons
  python.types           mypy --strict finds nothing in the Python package
  python.awkward_all     all awkward Python programs, plain and watched: what each prints, how it ends, its process's state
  python.prove_all       what `prove` says of right and wrong jobs, all of those of which the quick tier has a few
  python.programs        healthy Python programs as others write them: nothing found, the same bits as without watching
  python.launchers       Python jobs of other launchers than torchrun: recorded as its are
  python.part            Python jobs that record a part of themselves: it ends in order, the rest is unchanged to the bit
  python.resumed         Python jobs that go on from a checkpoint: what they lost is named, where nothing was, nothing is
  python.twins           pitfalls as Python scripts: each passes its own oracle, and is named as its measured score says
  python.leaves_alone_all  modules traced and compiled, warnings, and a standard error that is gone: as without watching
  python.watch_all       jobs under watch, all of the faults, near misses and ends of a job of which the quick tier has a few
  python.memory          the peak of memory of a job of 268 MB under watch: at most 64 MB above the plain job's
  python.cpp             C++ jobs that link lockstep::record under watch: recorded and named as Python jobs are
  python.raises          a recorder that raises at each of its calls: the job trains as without it
  python.hangs           Python jobs that hang under watch: each is ended, and the rank that does not come is named
  python.tells           Python scripts that tell watch what only they know: what needs a call is named with it
  python.nodes           a Python job on two nodes, each with its own agent and `watch`: one node's traces, and all
  python.wrapper         what `watch` may not change of its job: descriptors, signals, terminal, variables, exit code
  python.parallel        what is told of models of which each rank holds a part
  python.ledger          the ledger of whole jobs whose fault an event of its own shows, and of their right forms
  python.compare         `lockstep compare` of Python jobs: equal to the bit, another rate, other probes, a page, wrong use
  parity.ddp_parity_all  DDP in C++ against Python's, every case on 2 and 4 ranks
  parity.restarted_job   a job of a Python rank and a C++ rank: one is killed, torchrun starts both again, the bits are the same
  diagnose.mutants       a few programs that are no lessons, each changed by an operator, from the run to the score
  course.course_more     ./lockstep run and diagnose: what is told of a run and of one that failed, help's width, misspelt names
  course.explain_more    ./lockstep explain: every pitfall's difference as a patch, on a terminal, and in Python
  course.exercise        ./lockstep exercise: a copy, its check, hints, the build of it
  course.in_python       run and exercise with --python, on one pitfall
  course.run_in_python   ./lockstep run --python: the right program of a lesson
  course.exercise_in_python  ./lockstep exercise --python: hints, progress, what is refused
  course.start_in_python the five steps of ./lockstep start, in Python
  course.written_files   what commands write: links, fifos and folders in its place, another user, a read-only clone
  course.listens         what start, run, exercise and detective start listens on 127.0.0.1 only
  course.side_by_side    a few pitfalls as Python programs under PyTorch's own means
  course.arena_table     the arena: a few contestants on three cases, from the corpus to the score, and the oracles
  course.detective_more  ./lockstep detective with Python programs and with two faults
  course.detective_full  every pitfall that ./lockstep detective can draw: no evidence names it
  docs.lesson_pages      the commands of the lessons' pages: each ends as its page says, and prints what is quoted of it
  docs.page_snippets     the pages' Python code, in a job of two ranks
  browser.reading        the HTML report as it is read: order, figures, widths
  browser.job            a job's page in a browser
  browser.compare        a page of two runs in a browser
  browser.site           the site: every page, its pictures, search and links
  benchmarks.gpu_step    the step benchmark for GPUs, in small sizes: it and its twin in Python do the same work
  benchmarks.silence_cost  the statistics of what silent faults cost, and small trainings
  benchmarks.gpu_script  tests/gpu.py as far as it goes without a GPU
"""

import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "evaluation"), str(ROOT / "reports")]
import matrix  # noqa: E402
import results  # noqa: E402

RESULT = ROOT / "reports" / "results" / "full_tier.json"
LOCKSTEP = str(ROOT / "lockstep")
NEWEST = "2.15.0"


def run(command, timeout, **variables):
    """(exit code, output) of a command; a deadline counts as failure."""
    try:
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout)
        return done.returncode, done.stdout
    except subprocess.TimeoutExpired as late:
        return 124, f"{late.stdout or ''}\nended by its deadline of {timeout} s"


def ctest_summary(output):
    lines = re.findall(r"^(\d+% tests passed.*out of \d+)$", output, re.MULTILINE)
    skipped = len(re.findall(r"\*\*\*Skipped", output))
    return (lines[-1] if lines else "no test ran") + f"; {skipped} skipped"


def quick_tier(*options, **variables):
    code, output = run([LOCKSTEP, "test", *options], 5400, **variables)
    return code == 0, ctest_summary(output), output


def build_folder():
    code, output = run([LOCKSTEP, "build"], 3600)
    folders = re.findall(r"built: (\S+)", output)
    if code != 0 or not folders:
        raise RuntimeError(output[-2000:])
    folder = ROOT / folders[-1]
    code, output = run([in_cache(folder, "CMAKE_MAKE_PROGRAM"), "-C", str(folder), "full_tier"], 3600)
    if code != 0:
        raise RuntimeError(output[-2000:])
    return folder


def in_cache(folder, name):
    cache = (folder / "CMakeCache.txt").read_text(encoding="utf-8")
    return re.search(rf"^{name}:\S+?=(.*)$", cache, re.MULTILINE).group(1)


def lessons(world_size, seed, only):
    """(passed, skipped, failed names, output) of the lessons' tests at one world size and seed."""
    program = build_folder() / "tests" / "lessons_test"
    code, output = run([str(program), f"--gtest_filter={only}"], 1800, LOCKSTEP_TEST_WORLD_SIZE=str(world_size),
                       LOCKSTEP_TEST_SEED=str(seed))
    passed = len(re.findall(r"^\[ +OK \]", output, re.MULTILINE))
    skipped = len(re.findall(r"^\[  SKIPPED \] \S+ \(", output, re.MULTILINE))
    failed = sorted(set(re.findall(r"^\[  FAILED  \] (Lessons/[^\s,]+)", output, re.MULTILINE)))
    if code not in (0, 77) and not failed:
        failed = [f"exit code {code}"]
    return passed, skipped, failed, output


def sweep(settings, only):
    passed = skipped = 0
    failures, outputs = [], []
    for world_size, seed in settings:
        ok, skip, failed, output = lessons(world_size, seed, only)
        passed, skipped = passed + ok, skipped + skip
        failures += [f"{name} on {world_size} ranks, seed {seed}" for name in failed]
        if failed:
            outputs.append(output)
    words = f"{passed} passed, {len(failures)} failed, {skipped} skipped (cannot show at that world size)"
    return not failures, words + "".join(f"\n  {failure}" for failure in failures), "\n".join(outputs)


def repeats():
    return sweep([((2, 3, 4)[i % 3], i) for i in range(20)], "Lessons/Variant.*-*near_miss*:*correct*")


def world_sizes():
    return sweep([(1, 0), (8, 0), (16, 0)], "Lessons/Variant.*")


def configure(source, folder, *options):
    """Configures with what the default build folder was configured with; (exit code, output, ninja)."""
    built = build_folder()
    prefix, cmake, ninja = (in_cache(built, name) for name in ("CMAKE_PREFIX_PATH", "CMAKE_COMMAND", "CMAKE_MAKE_PROGRAM"))
    code, output = run([cmake, "-S", str(source), "-B", str(folder), "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}",
                        f"-DCMAKE_MAKE_PROGRAM={ninja}", "-DCMAKE_CXX_COMPILER=clang++",
                        "-DCMAKE_C_COMPILER=clang", *options], 600)
    return code, output, ninja


# What each set of sanitizers runs on: nothing of it links torch.
SANITIZED = {
    "address,undefined": ("base_test", "trace_test", "archive_test", "archive_memory_test", "archive_corpus_test", "flight_test",
                          "diagnose_test", "report_test", "launch_unit_test", "launch_fault_test"),
    "thread": ("base_test", "trace_test", "diagnose_test", "launch_unit_test", "launch_fault_test"),
}


def sanitizers():
    codes, log = [], ""
    for kinds, names in SANITIZED.items():
        folder = ROOT / "build" / f"free-{kinds.replace(',', '-')}"
        code, output, ninja = configure(ROOT, folder, f"-DLOCKSTEP_SANITIZE={kinds}")
        log += output
        if code != 0:
            return False, f"configuring failed ({kinds})", log
        code, output = run([ninja, "-C", str(folder), *names], 1800)
        log += output
        if code != 0:
            return False, f"the build failed ({kinds})", log
        for name in names:
            code, output = run([str(folder / "tests" / name)], 600, UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1",
                               ASAN_OPTIONS="detect_leaks=1", TSAN_OPTIONS="halt_on_error=1")
            log += output
            codes.append((kinds, name, code))
    words = "; ".join(f"{kinds}: " + ", ".join(
        f"{name} {'passed' if code in (0, 77) else f'failed ({code})'}" for of, name, code in codes if of == kinds)
        for kinds in SANITIZED)
    return all(code in (0, 77) for _, _, code in codes), words, log


def consumer():
    folder = ROOT / "build" / "consumer"
    code, log, ninja = configure(ROOT / "tests" / "consumer" / "subdirectory", folder, f"-DLOCKSTEP={ROOT}")
    if code != 0:
        return False, "configuring failed", log
    code, output = run([ninja, "-C", str(folder), "train"], 1800)
    log += output
    if code != 0:
        return False, "the build failed", log
    if "NCCL: ON" in log and not (folder / "lockstep" / "lib" / "liblockstep_nccl.so").exists():
        return False, "what the program loads for NCCL was not built with it", log
    code, output = run([sys.executable, str(ROOT / "tests/consumer/consumer_test.py"), str(folder / "train"),
                        str(build_folder() / "lockstep-course")], 300)
    return code == 0, "built outside this tree; " + output.strip().splitlines()[-1], log + output


def detectors():
    result, words = matrix.sweep(build_folder(), [2, 3, 4, 8], [0, 1, 2])
    return matrix.is_good(result), words, ""


def script(*words):
    """A Python script of the tree that measures or tests, and exits with 0 where all is well."""
    code, output = run([sys.executable, *words], 5400)
    return code == 0, (output.strip().splitlines() or ["nothing was printed"])[-1][:200], output


TESTS = tuple(re.findall(r"^  ([a-z]+\.[a-z_]+) ", __doc__, re.MULTILINE))
INSTALL = "python/tests/install_test.py"


def of_ctest(name):
    """A phase that is one test of label full. A skip is no pass."""
    def phase():
        folder = build_folder()
        code, output = run([in_cache(folder, "CMAKE_CTEST_COMMAND"), "--test-dir", str(folder), "-R", f"^{re.escape(name)}$",
                            "--verbose", "--no-tests=error"], 5500)
        return code == 0 and "***Skipped" not in output, ctest_summary(output), output
    return phase


def mutants():
    measured = ROOT / "reports" / "results" / "mutants.json"
    passed, _, output = script("evaluation/mutants/mutants.py", str(ROOT / "reports" / "out" / "mutants"),
                               "--build", str(build_folder()), "--json", str(measured))
    return passed, f"see {measured.relative_to(ROOT)}", output


def side_by_side():
    measured = ROOT / "reports" / "results" / "side_by_side.json"
    passed, _, output = script("evaluation/pytorch_means/side_by_side.py", "--out", str(measured))
    return passed, f"see {measured.relative_to(ROOT)}", output


def compare():
    """The pairs must be equal; the score of the silent variants is kept."""
    measured = ROOT / "reports" / "results" / "compare_pairs.json"
    build = build_folder()
    passed, _, output = script("evaluation/pairs/healthy_pairs.py", "--build", str(build), "--package", str(build / "python"),
                               "--json", str(measured))
    scored, _, more = script("evaluation/pairs/silent_variants.py", "--build", str(build))
    return passed and scored, more.strip().splitlines()[-1] if more.strip() else f"see {measured.relative_to(ROOT)}", output + more


def silence():
    code, output = run([LOCKSTEP, "bench", "silence_cost"], 5400)
    return code == 0, "see reports/out/silence_cost.md", output


def exercises():
    folder = build_folder()
    code, output = run([str(folder / "lockstep-course"), "exercise", "author-check"], 10800)
    return code == 0, f"{len(re.findall(r': sound$', output, re.MULTILINE))} sound", output


def exercises_in_python():
    code, output = run([sys.executable, "lessons/python/exercise.py", "author-check"], 7200,
                       PYTHONPATH=str(build_folder() / "python"))
    return code == 0, (output.strip().splitlines() or ["nothing was printed"])[-1][:200], output


def install():
    code, log = run([LOCKSTEP, "setup", "--torch", NEWEST], 3600)
    if code != 0:
        return False, f"torch {NEWEST} could not be set up", log
    newest = ROOT / ".lockstep" / f"torch-{NEWEST}" / "bin" / "python"
    codes = []
    for python, other in ((sys.executable, newest), (newest, sys.executable)):
        code, output = run([str(python), INSTALL, str(other)], 3600)
        log += output
        codes.append(code)
    return codes == [0, 0], f"exit codes {codes} with the default torch and {NEWEST}", log


def changes(language):
    """The oracles of each set in this language."""
    sets = sorted(f"{path.parent.name}/{language}" for path in (ROOT / "evaluation/sets").glob(f"*/{language}"))
    if not sets:
        return False, "there is no set", ""
    done = [script("evaluation/sets.py", str(build_folder() / "python"), "oracles", one) for one in sets]
    return all(passed for passed, _, _ in done), "; ".join(words for _, words, _ in done), "".join(output for _, _, output in done)


PHASES = {
    "quick": quick_tier,
    "repeats": repeats,
    "world-sizes": world_sizes,
    "mutants": mutants,
    "side-by-side": side_by_side,
    "compare": compare,
    "silence": silence,
    "gcc": lambda: quick_tier("--compiler", "g++"),
    "newest": lambda: quick_tier("--torch", NEWEST, LOCKSTEP_UNITY="OFF"),
    "sanitizers": sanitizers,
    "matrix": detectors,
    "exercises": exercises,
    "py-exercises": exercises_in_python,
    "consumer": consumer,
    "install": install,
    **{name: of_ctest(name) for name in TESTS},
    "changes": lambda: changes("python"),
    "changes-cpp": lambda: changes("cpp"),
    "pictures": lambda: script("lessons/pictures/measure.py", str(build_folder()), "--check"),
}


def main(names):
    unknown = [name for name in names if name not in PHASES]
    if unknown:
        print(f"there is no phase {', '.join(unknown)}; there are: {', '.join(PHASES)}", file=sys.stderr)
        return 2
    result = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    good = True
    for name in names or PHASES:
        print(f"{name} ...", file=sys.stderr, flush=True)
        start = time.monotonic()
        try:
            passed, words, log = PHASES[name]()
        except RuntimeError as error:
            passed, words, log = False, "could not be built", str(error)
        good &= passed
        result[name] = {"date": datetime.date.today().isoformat(), "passed": passed, "result": words,
                        "seconds": round(time.monotonic() - start)}
        (ROOT / "reports" / "out").mkdir(parents=True, exist_ok=True)
        (ROOT / "reports" / "out" / f"full-{name}.log").write_text(log, encoding="utf-8")
        RESULT.parent.mkdir(parents=True, exist_ok=True)
        RESULT.write_text(results.text(result), encoding="utf-8")
        print(f"{name}: {'passed' if passed else 'FAILED'}: {words}", file=sys.stderr, flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
