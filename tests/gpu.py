"""Everything that wants a GPU, in one call of at most ten minutes: build, tests, lessons over NCCL, benchmarks.

usage: gpu.py [--out DIR] [--minutes N] [--carried DIR] [--only PHASE ...]
       gpu.py pack DIR          on a machine with Debian's packages: gathers what a GPU machine without them lacks

  build        LibTorch of the Python that runs this, in build/gpu; the headers and libraries of --carried come first
  bandwidth    the bucket kernel against cudaMemcpy
  step         a training step of our DDP against Python's, and against itself observed: an MLP, ResNet-50, GPT-2 124M, each
               in fp32 and bf16
  tests        ctest -L gpu
  lessons      over NCCL, several at once: the right variants of all, and all variants of those that differ on GPUs; a GPU a rank,
               and where there are fewer, ranks share them (--share-gpu)
  python       Python jobs on GPUs over NCCL under `lockstep watch`: right ones, which train the same to the bit, and faults
  watching     what watching costs a Python job's step

Phases run in that order until the minutes are over; what was left out is said. Where there are few cores the build alone
takes long: call this again, with --only for the rest. DIR (reports/out/gpu) gets gpu.json, the
benchmarks' own JSON, the lessons' reports as lessons.tar.gz, and log.txt. Exit codes: 0 all ran and passed (a
benchmark's target that was missed is told there, and fails nothing), 1 something failed or was left out, 2 usage, 3
this Python has no torch, 77 there is no GPU, 130 interrupted (nothing is left running).
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "gpu"
DATA = "/usr/share/datasets/fashion-mnist"
PACKAGES = ("libgloo-dev", "nlohmann-json3-dev", "libcli11-dev", "libxxhash-dev", "libfmt-dev", "zlib1g-dev", "zlib1g",
            "libdeflate-dev", "libdeflate0", "libgtest-dev", "libgmock-dev", "googletest", "libbenchmark-dev", "libbenchmark1debian")
# All that the phases run.
TARGETS = ("lessons/all", "lessons_test", "gloo_fault_test", "dist_nccl_test", "device_test", "gpu_step")
OF_KERNELS = ("kernels_test", "bucket_bandwidth")  # where there is an nvcc that fits
OF_PYTHON = ("_extension",)  # where Python's headers are
PYTHON_TESTS = ("a_right_job_is_right_and_unchanged_to_the_bit", "right_jobs_that_look_wrong", "faults_are_named",
                "another_batch_size_is_advice_with_its_values", "a_hang_is_ended_and_named",
                "a_rank_that_raises_is_named_and_the_job_s_exit_code_is_kept", "a_rank_that_is_killed_is_named")
JOBS_AT_ONCE = max(2, (os.cpu_count() or 1) // 2)  # of two ranks, mostly
ALONE = "17_nccl_and_streams"
# What is told in all variants: what differs on GPUs. Of the other lessons the right variants run; all of them would take longer
# than there is time for.
IN_ALL_VARIANTS = ("02_data_parallel", "03_ddp", "06_sync_batch_norm", "07_checkpoint", ALONE)
RESERVE_S = 15  # to write down what was seen


def pack(folder):
    """The files of PACKAGES under folder/usr, as they lie in the system, and the data set."""
    if folder.exists() and any(folder.iterdir()):
        raise SystemExit(f"{folder} is not empty; name a new folder")
    listed = subprocess.run(["dpkg", "-L", *PACKAGES], check=True, capture_output=True, text=True).stdout.split("\n")
    for name in sorted({line for line in listed if re.match(r"(/usr)?/(include|lib|src|share/cmake)/", line)}):
        source, target = pathlib.Path(name), folder / "usr" / name.removeprefix("/usr").lstrip("/")
        if source.is_dir():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)  # a link's file under the link's name: links do not travel everywhere
    shutil.copytree(DATA, folder / "data")
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(f"{folder}: {size / 2**20:.0f} MiB")


def end(process):
    """Its output. Asked first: ninja, ctest and the lessons' launcher then end what they have started, wherever that is."""
    for number, patience in ((signal.SIGTERM, 10), (signal.SIGKILL, None)):
        try:
            os.killpg(process.pid, number)
            return process.communicate(timeout=patience)[0]
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            return process.communicate()[0]


class Session:
    def __init__(self, out, minutes, carried):
        self.out, self.carried = out, carried
        self.end = time.monotonic() + 60 * minutes - RESERVE_S
        self.result = {"phases": []}
        self.running = set()
        # A Python environment's cmake, ctest and ninja lie beside its python.
        path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        self.environment = {**os.environ, "LOCKSTEP_PYTHON": sys.executable, "LOCKSTEP_BUILD_DIR": str(BUILD), "PYTHONUNBUFFERED": "1",
                            "PATH": path}
        if carried:
            self.environment["LOCKSTEP_DATA"] = str(carried / "data")
        out.mkdir(parents=True, exist_ok=True)
        self.log = open(out / "log.txt", "w", encoding="utf-8")

    def call(self, *command):
        """(exit code, output); 124 where the minutes are over."""
        command = [str(word) for word in command]
        left = self.end - time.monotonic()
        with subprocess.Popen(command, cwd=ROOT, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, start_new_session=True) as process:
            self.running.add(process)
            try:
                output, code = process.communicate(timeout=max(left, 1))[0], process.returncode
            except subprocess.TimeoutExpired:
                output, code = end(process) + "\nended: the minutes were over", 124
            except KeyboardInterrupt:
                end(process)
                raise
            finally:
                self.running.discard(process)
        self.log.write(f"\n$ {' '.join(command)}\n{output}")
        self.log.flush()
        return code, output

    def at_once(self, work, items):
        with concurrent.futures.ThreadPoolExecutor(JOBS_AT_ONCE) as pool:
            try:
                return list(pool.map(work, items))
            except KeyboardInterrupt:
                pool.shutdown(wait=False, cancel_futures=True)
                for process in list(self.running):
                    os.killpg(process.pid, signal.SIGTERM)  # a launcher ends its ranks
                raise

    def phase(self, name, work):
        if self.end - time.monotonic() < 5:
            self.result["phases"].append({"phase": name, "passed": False, "said": "left out: the minutes were over"})
        else:
            start = time.monotonic()
            try:
                passed, said = work()
            except Exception as error:  # the phases behind it, and what was seen, are worth more than a trace
                passed, said = False, f"{type(error).__name__}: {error}"
            self.result["phases"].append({"phase": name, "passed": passed, "said": said,
                                          "seconds": round(time.monotonic() - start, 1)})
        last = self.result["phases"][-1]
        print(f"{name}: {'passed' if last['passed'] else 'FAILED'}: {last['said']}", flush=True)
        (self.out / "gpu.json").write_text(json.dumps(self.result, indent=1) + "\n", encoding="utf-8")
        return last["passed"]

    def build(self):
        import torch
        prefixes = [pathlib.Path(torch.utils.cmake_prefix_path).parents[1]]
        options = [f"-DLOCKSTEP_PYTHON={sys.executable}"]
        if self.carried:
            usr = self.carried / "usr"
            prefixes.insert(0, usr)
            options += [f"-DLOCKSTEP_GLOO_INCLUDE={usr / 'include'}", f"-DXXHASH_INCLUDE={usr / 'include'}"]
        prefix = ";".join(map(str, prefixes))
        # Fresh: what an earlier call found in another --carried is not to be found again.
        code, output = self.call("cmake", "--fresh", "-S", ROOT, "-B", BUILD, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}",
                                 *options)
        if code != 0:
            return False, output[-500:]
        kernels = re.search("CUDA kernels: (.*)", output)[1]
        package = "OFF" if "Python package: OFF" in output else "ON"
        targets = TARGETS + (OF_KERNELS if kernels.startswith("ON") else ()) + (OF_PYTHON if package == "ON" else ())
        code, output = self.call("cmake", "--build", BUILD, "--target", *targets)
        return code == 0, f"built; kernels: {kernels}; Python package: {package}" if code == 0 else output[-500:]

    def tests(self):
        code, output = self.call("ctest", "--test-dir", BUILD, "-L", "^gpu$", "-j", JOBS_AT_ONCE, "--output-on-failure",
                                 "--no-tests=error")
        ended = dict(re.findall(r"Test +#\d+: (\S+) \.+ *\**(\w+)", output))
        self.result["tests"] = ended
        return code == 0 and set(ended.values()) == {"Passed"}, self.counted(ended.values()) + ("" if code != 124 else ", the rest left out")

    @staticmethod
    def counted(ended):
        return ", ".join(f"{number} {how}" for how, number in sorted(collections.Counter(ended).items()))

    def lessons(self):
        reports, ended = self.out / "lessons", {}
        self.result["lessons"] = ended
        reports.mkdir(exist_ok=True)
        names = sorted(path.name for path in (ROOT / "lessons").glob("[0-9][0-9]_*"))

        def lesson(name):
            variants = "all" if name in IN_ALL_VARIANTS else "correct"
            return self.call(BUILD / "bin" / name, "--backend", "nccl", "--share-gpu", "--variant", variants, "--json",
                             reports / f"{name}.json")

        alone = [lesson(name) for name in names if name == ALONE]  # its deadlines are of seconds
        names = [name for name in names if name == ALONE] + [name for name in names if name != ALONE]
        done = alone + self.at_once(lesson, names[len(alone):])
        for file in sorted(reports.glob("*.json")):
            for variant in json.loads(file.read_text(encoding="utf-8"))["variants"]:
                ended.setdefault(file.stem, {})[variant["name"]] = variant["verdict"]
        with tarfile.open(self.out / "lessons.tar.gz", "w:gz") as packed:
            packed.add(reports, "lessons")
        shutil.rmtree(reports)
        wrong = [f"{name} ended with {code}" for name, (code, _) in zip(names, done) if code != 0]
        verdicts = [verdict for variants in ended.values() for verdict in variants.values()]
        return not wrong, ", ".join([self.counted(verdicts), *wrong])

    def python(self):
        package, tests = BUILD / "python", ROOT / "python" / "tests"
        calls = {name: (tests / "watch_test.py", package, "--all", f"Watch.test_{name}") for name in PYTHON_TESTS}
        calls["prove"] = (tests / "prove_test.py", package, "--all", "Prove.test_a_job_on_a_gpu")
        calls["sync_bn"] = (tests / "programs_test.py", package, "Programs.test_sync_bn")
        # The job shares a GPU by itself; the other program takes the first of its node, of which each rank has one.
        share = ("env", "JOB_DEVICE=cuda", "NODES=2", "NCCL_NET=Socket", "NCCL_SOCKET_IFNAME=lo", "NCCL_MNNVL_ENABLE=0")
        done = dict(zip(calls, self.at_once(lambda call: self.call(*share, sys.executable, *call), calls.values())))
        ended = {name: "left out" if code == 124 else "passed" if code == 0 and re.search(r"^OK$", output, re.MULTILINE) else "failed"
                 for name, (code, output) in done.items()}
        self.result["python"] = ended
        return set(ended.values()) == {"passed"}, self.counted(ended.values())

    def benchmark(self, name, option, *command):
        file = self.out / f"{name}.json"
        code, output = self.call(*command, option, file)
        return code == 0 and file.exists(), output.strip()[-1500:]

    def run(self, only):
        programs = BUILD / "benchmarks"
        phases = {
            "build": self.build,
            "bandwidth": lambda: self.benchmark("bucket_bandwidth", "--json", programs / "bucket_bandwidth"),
            "step": lambda: self.benchmark("gpu_step", "--out", sys.executable, ROOT / "benchmarks" / "gpu_step.py",
                                           programs / "gpu_step", "--pairs", 9),
            "tests": self.tests,
            "lessons": self.lessons,
            "python": self.python,
            "watching": lambda: self.benchmark("watch_overhead", "--out", sys.executable, ROOT / "benchmarks" / "watch_overhead.py",
                                               "--device", "cuda"),
        }
        passed = True
        for name, work in phases.items():
            if only and name not in only:
                continue
            passed = self.phase(name, work) and passed
            if name == "build" and not passed:
                break  # there is nothing to run
        self.log.close()
        return 0 if passed else 1


def usage(text):
    print(f"error: {text}; see --help", file=sys.stderr)
    return 2


def pack_or_say_why(arguments):
    if len(arguments) != 1 or arguments[0].startswith("-"):
        return usage("pack takes one folder, a new one")
    try:
        pack(pathlib.Path(arguments[0]).resolve())
    except OSError as error:
        return usage(f"cannot pack into {arguments[0]}: {error.strerror}")
    return 0


def main():
    if sys.argv[1:2] == ["pack"]:
        return pack_or_say_why(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "reports" / "out" / "gpu")
    parser.add_argument("--minutes", type=float, default=9.5)
    parser.add_argument("--carried", type=pathlib.Path)
    parser.add_argument("--only", nargs="+", default=[],
                        choices=("build", "bandwidth", "step", "tests", "lessons", "python", "watching"))
    arguments = parser.parse_args()
    try:
        import torch
    except ImportError:
        print(f"error: {sys.executable} has no torch. Call this with the Python that has it: the one of your LibTorch, or, where "
              "./lockstep has set one up, .lockstep/torch-2.11.0/bin/python", file=sys.stderr)
        return 3
    if not torch.cuda.is_available() and arguments.only != ["build"]:
        print("skipped: there is no GPU here; --only build shows whether it would build", file=sys.stderr)
        return 77
    if not arguments.minutes > 0.5 or arguments.minutes > 600:
        return usage(f"--minutes {arguments.minutes:g}: more than 0.5, and at most 600")
    carried = arguments.carried.resolve() if arguments.carried else None
    if carried and not ((carried / "usr" / "include").is_dir() and (carried / "data").is_dir()):
        return usage(f"--carried {arguments.carried}: no folder that `gpu.py pack` has made")
    try:
        session = Session(arguments.out.resolve(), arguments.minutes, carried)
    except OSError as error:
        return usage(f"--out {arguments.out}: {error.strerror}")
    try:
        return session.run(arguments.only)
    except KeyboardInterrupt:
        print(f"interrupted; what was seen until now is in {arguments.out}", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
