"""An outside project, installed/, against an installed copy: find_package finds it, its programs train on real text,
and `lockstep diagnose` names what is wrong with them, or says that nothing is.

usage: installed_test.py BUILD      (a build folder in which `libraries` was built; what is made here lies in
                                     BUILD/tests/consumer-installed, so that a second run compiles nothing)
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent / "support"))
import nothing_left  # noqa: E402

BUILD = PREFIX = PROGRAMS = None
TEXT = ROOT / "common" / "lockstep" / "trace" / "trace.md"  # real English; letter by letter
RUN_DEADLINE_S, BUILD_DEADLINE_S = 90, 300
# What would place a rank, or lead to another LibTorch or library, than the test says.
NOT_INHERITED = re.compile(r"RANK$|WORLD_SIZE$|^MASTER_|^LOCKSTEP_|^TORCHELASTIC_|^SLURM_|^OMPI_|^CMAKE_PREFIX_PATH$")


def environment(**more):
    own = {name: value for name, value in os.environ.items()
           if not NOT_INHERITED.search(name) or name == nothing_left.MARK}
    return {**own, "OMP_NUM_THREADS": "1", **{name: str(value) for name, value in more.items()}}


def call(command, deadline_s=RUN_DEADLINE_S, **options):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=deadline_s,
                          stdin=subprocess.DEVNULL, **{"env": environment(), **options})


def cached(name):
    text = (BUILD / "CMakeCache.txt").read_text(encoding="utf-8")
    return re.search(rf"^{name}:\w+=(.*)$", text, re.MULTILINE).group(1)


def configure(source, folder, prefixes):
    return call([cached("CMAKE_COMMAND"), "-S", source, "-B", folder, "-G", "Ninja",
                 f"-DCMAKE_MAKE_PROGRAM={cached('CMAKE_MAKE_PROGRAM')}",
                 f"-DCMAKE_CXX_COMPILER={cached('CMAKE_CXX_COMPILER')}",
                 f"-DCMAKE_PREFIX_PATH={';'.join(map(str, prefixes))}"], BUILD_DEADLINE_S)


def must(done):
    if done.returncode != 0:
        raise RuntimeError(f"{done.args} exited with {done.returncode}:\n{(done.stdout + done.stderr)[-6000:]}")


def install_and_build():
    """Installs, moves what was installed elsewhere, and builds the outside project with that."""
    global PREFIX, PROGRAMS
    folder = BUILD / "tests" / "consumer-installed"
    made, PREFIX, PROGRAMS = folder / "made", folder / "moved", folder / "build"
    for old in (made, PREFIX):
        shutil.rmtree(old, ignore_errors=True)
    must(call([cached("CMAKE_COMMAND"), "--install", BUILD, "--prefix", made]))
    made.rename(PREFIX)
    must(configure(HERE / "installed", PROGRAMS, [PREFIX, cached("CMAKE_PREFIX_PATH")]))
    must(call([cached("CMAKE_MAKE_PROGRAM"), "-C", PROGRAMS], BUILD_DEADLINE_S))


def lockstep(*arguments):
    return call([PREFIX / "bin" / "lockstep", *arguments])


class Folder(nothing_left.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)


class Package(Folder):
    def refusal(self, find, *prefixes):
        source = self.folder / "source"
        source.mkdir(exist_ok=True)
        (source / "CMakeLists.txt").write_text(f"cmake_minimum_required(VERSION 3.25)\nproject(x CXX)\n{find}\n")
        done = configure(source, self.folder / "build", prefixes)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        return " ".join(done.stderr.split())

    def test_without_libtorch_it_says_how_to_name_one(self):
        text = self.refusal("find_package(Lockstep REQUIRED)", PREFIX)
        self.assertIn("LibTorch was not found. Name yours: cmake -DCMAKE_PREFIX_PATH=", text)

    def test_another_libtorch_is_refused(self):
        torch = self.folder / "libtorch"
        for name in ("include/torch/csrc/api/include/torch/torch.h", "lib/libtorch_cpu.so", "lib/libc10.so"):
            (torch / name).parent.mkdir(parents=True, exist_ok=True)
            (torch / name).touch()
        version = torch / "include/torch/headeronly/version.h"
        version.parent.mkdir()
        version.write_text("".join(f"#define TORCH_VERSION_{part} 9\n" for part in ("MAJOR", "MINOR", "PATCH")))
        text = self.refusal("find_package(Lockstep REQUIRED)", PREFIX, torch)
        self.assertRegex(text, r"built with LibTorch 2\.\d+\.\d+, and the one found is 9\.9\.9")

    def test_another_version_and_an_unknown_component_are_refused(self):
        self.assertIn("0.1.0", self.refusal("find_package(Lockstep 0.2 REQUIRED)", PREFIX))
        torch = pathlib.Path(cached("CMAKE_PREFIX_PATH")) / "share" / "cmake"  # torch.utils.cmake_prefix_path
        text = self.refusal("find_package(Lockstep REQUIRED COMPONENTS train nonsense)", PREFIX, torch)
        self.assertIn("There is no lockstep::nonsense.", text)

    def test_it_leads_to_no_build_folder_and_no_library_of_its_build(self):
        for file in (PREFIX / "lib" / "cmake" / "Lockstep").iterdir():
            self.assertNotIn(str(ROOT), file.read_text(encoding="utf-8"), file.name)
        known = re.compile(r"^(lockstep|torch|c10|ATen|sys)/|^[a-z_]+$|^c[a-z]+$")
        headers = list((PREFIX / "include").rglob("*.h"))
        self.assertGreater(len(headers), 50)
        for header in headers:
            for include in re.findall(r"^#include [<\"]([^>\"]+)", header.read_text(encoding="utf-8"), re.MULTILINE):
                self.assertRegex(include, known, header.name)
                if include.startswith("lockstep/"):
                    self.assertTrue((PREFIX / "include" / include).exists(), f"{header.name}: {include}")


class Program(Folder):
    """A program's ranks in a folder of their own; their traces are in its traces/."""

    def train(self, program, world_size, fault="", **more):
        """Every rank's (exit code, output)."""
        ranks = []
        for rank in range(world_size):
            own = environment(RANK=rank, WORLD_SIZE=world_size, LOCAL_RANK=rank, LOCAL_WORLD_SIZE=world_size,
                              LOCKSTEP_STORE=f"file://{self.folder}/store", **more)
            process = subprocess.Popen([PROGRAMS / program, TEXT, fault], cwd=self.folder, env=own, text=True,
                                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            self.addCleanup(process.stdout.close)
            self.addCleanup(process.wait)
            self.addCleanup(process.kill)  # cleaned up in the reverse order
            ranks.append(process)
        limit = time.monotonic() + RUN_DEADLINE_S
        outputs = [process.communicate(timeout=max(0.1, limit - time.monotonic()))[0] for process in ranks]
        return [(process.returncode, output) for process, output in zip(ranks, outputs)]

    def assert_trained(self, ranks):
        self.assertEqual([code for code, _ in ranks], [0] * len(ranks), ranks)

    def assert_learned(self, output):
        losses = [float(loss) for loss in re.findall(r"^epoch \d: loss ([0-9.]+)$", output, re.MULTILINE)]
        self.assertEqual(len(losses), 2, output)
        self.assertLess(losses[1], 0.95 * losses[0])

    def assert_findings(self, expected):
        """Exactly these (pitfall, ranks): for programs, for people, and in the exit code."""
        as_json, as_text = lockstep("diagnose", "--json", self.folder / "traces"), lockstep("diagnose", self.folder / "traces")
        self.assertEqual({as_json.returncode, as_text.returncode}, {1 if expected else 0}, as_text.stdout)
        findings = [(each["pitfall"], each["ranks"]) for each in json.loads(as_json.stdout)["findings"]]
        self.assertEqual(findings, expected)
        for pitfall, _ in expected:
            self.assertIn(f"violation: {pitfall}\n", as_text.stdout)
        self.assertEqual("BROKEN" in as_text.stdout, bool(expected), as_text.stdout)

    def events(self):
        trace = json.loads(lockstep("diagnose", "--export", self.folder / "traces").stdout)
        return {event["event"] for rank in trace["ranks"] for event in rank["events"]}


class TwoLines(Program):
    def test_two_lines_were_added(self):
        lines = (HERE / "installed" / "two_lines.cpp").read_text(encoding="utf-8").splitlines()
        self.assertEqual(sum("// added" in line for line in lines), 2)
        self.assertEqual([line for line in lines if "record" in line and "// added" not in line and "//" not in line], [])

    def test_under_torchrun_it_is_clean(self):
        done = call([sys.executable, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node", "2",
                     "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--log-dir", self.folder,
                     PROGRAMS / "two_lines", TEXT], cwd=self.folder, env=environment())
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assert_learned(done.stdout)
        self.assert_findings([])
        self.assertEqual(self.events(), {"backward", "before_update", "collective", "gradient_arrived", "group", "input",
                                         "local_gradients", "loss_divisors", "model", "parameters", "placement",
                                         "random_state", "settings", "store_call", "update"})

    def test_three_ranks_are_clean(self):
        ranks = self.train("two_lines", 3)
        self.assert_trained(ranks)
        self.assert_learned(ranks[0][1])
        self.assert_findings([])

    def test_a_loss_reduced_on_rank_0_alone_meets_the_others_gradients(self):
        self.assertNotEqual({code for code, _ in self.train("two_lines", 3, "loss-on-rank-0")}, {0})
        self.assert_findings([("shape-mismatch", [0])])

    def test_a_last_loss_reduced_on_rank_0_alone_meets_nobody(self):
        self.assertNotEqual(self.train("two_lines", 3, "last-loss-on-rank-0")[0][0], 0)
        self.assert_findings([("rank-conditional-collective", [0])])

    def test_of_two_ranks_both_are_named_since_either_may_be_wrong(self):
        self.assertNotEqual(self.train("two_lines", 2, "last-loss-on-rank-0")[0][0], 0)
        self.assert_findings([("rank-conditional-collective", [0, 1])])

    def test_the_nccl_library_is_found_where_it_was_installed(self):
        installed = (PREFIX / "lib" / "liblockstep_nccl.so").exists()
        done = call([PROGRAMS / "two_lines", TEXT], cwd=self.folder,
                    env=environment(RANK=0, WORLD_SIZE=64, LOCKSTEP_STORE=f"file://{self.folder}/store",
                                    LETTERS_BACKEND="nccl"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("need a GPU each" if installed else "not part of this build", done.stderr)


class Probed(Program):
    def test_it_is_clean(self):
        self.assert_trained(self.train("probed", 2))
        self.assert_findings([])

    def test_gradients_that_are_summed(self):
        self.assert_trained(self.train("probed", 2, "sum"))
        self.assert_findings([("sum-not-mean", [0, 1])])

    def test_an_order_that_is_never_shuffled_again(self):
        self.assert_trained(self.train("probed", 3, "one-order"))
        self.assert_findings([("missing-set-epoch", [0, 1, 2])])


class Unprobed(Program):
    """Recorded by a variable of the environment."""

    def train(self, program, world_size, fault="", **more):
        return super().train(program, world_size, fault, LOCKSTEP_TRACE=self.folder / "traces", **more)

    def test_it_is_clean_and_all_of_it_is_recorded(self):
        self.assertNotIn("record", (HERE / "installed" / "unprobed.cpp").read_text(encoding="utf-8").split("#include", 1)[1])
        self.assert_trained(self.train("unprobed", 2))
        self.assert_findings([])
        self.assertLessEqual({"model", "engine", "dataset", "set_epoch", "pass_begin", "pass_end", "samples", "forward",
                              "loss", "local_gradients", "reduced_gradients", "parameters", "update", "group", "placement"},
                             self.events())

    def test_a_forward_beside_the_wrapper(self):
        self.assert_trained(self.train("unprobed", 2, "bypass"))
        self.assert_findings([("forward-bypasses-wrapper", [0, 1])])

    def test_an_order_that_is_never_shuffled_again(self):
        self.assert_trained(self.train("unprobed", 3, "one-order"))
        self.assert_findings([("missing-set-epoch", [0, 1, 2])])

    def test_a_program_that_records_itself_is_recorded_once(self):
        self.assert_trained(super().train("two_lines", 2, LOCKSTEP_TRACE=self.folder / "others"))
        self.assert_findings([])
        self.assertFalse((self.folder / "others").exists())

    def test_without_the_variable_nothing_is_written(self):
        self.assert_trained(super().train("unprobed", 2))
        self.assertFalse((self.folder / "traces").exists())


class Installed(Folder):
    def test_exit_codes_of_what_cannot_be_diagnosed(self):
        damaged = self.folder / "damaged"
        damaged.mkdir()
        (damaged / "rank_0.trace").write_bytes(b"LKSTRACE, it says")
        for arguments, code, text in ((("diagnose",), 2, "folder"), (("diagnose", self.folder, "--no-such"), 2, "--no-such"),
                                      (("diagnose", self.folder / "absent"), 3, "absent"),
                                      (("diagnose", self.folder), 3, str(self.folder)),
                                      (("diagnose", damaged), 3, "rank_0.trace")):
            done = lockstep(*arguments)
            self.assertEqual((done.returncode, done.stdout), (code, ""), arguments)
            self.assertIn(text, done.stderr)

    def test_the_lessons_need_the_clone(self):
        for command in ("list", "run"):
            done = lockstep(command)
            self.assertEqual((done.returncode, done.stdout), (3, ""))
            self.assertIn("needs a clone of Lockstep", done.stderr)


if __name__ == "__main__":
    BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
    install_and_build()
    unittest.main()
