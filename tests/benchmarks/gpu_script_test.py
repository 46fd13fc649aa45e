"""tests/gpu.py as far as it goes without a GPU: it says that there is none, and what it packs is all that CMake looks for.

usage: gpu_script_test.py CMAKE NINJA TORCH_PREFIX
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests" / "gpu.py"
sys.path.insert(0, str(SCRIPT.parent))
import gpu  # noqa: E402

TOOLS = ("cc", "c++", "gcc", "g++", "clang", "clang++", "as", "ld", "ld.lld", "ar", "ranlib", "nm", "nvcc", "git", "python3")
CMAKE = NINJA = TORCH_PREFIX = None


def script(*arguments):
    return subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True, timeout=100)


class GpuScript(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-gpu-script-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_says_that_there_is_no_gpu(self):
        import torch
        if torch.cuda.is_available():
            self.skipTest("there is one")
        done = script("--out", self.folder / "out")
        self.assertEqual((done.returncode, done.stdout), (77, ""))
        self.assertIn("there is no GPU", done.stderr)

    def test_refuses_what_cannot_work(self):
        file = self.folder / "file"
        file.write_text("")
        for arguments, word in ((("--only", "build", "--minutes", "0"), "--minutes 0"),
                                (("--only", "build", "--minutes", "nan"), "--minutes nan"),
                                (("--only", "build", "--carried", self.folder), "gpu.py pack"),
                                (("--only", "build", "--out", file), "--out"),
                                (("pack",), "one folder"), (("pack", "--help"), "one folder"),
                                (("pack", file / "below"), "cannot pack")):
            done = script(*arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""), arguments)
            self.assertRegex(done.stderr, f"^error: .*{word}.*; see --help\n$")

    def test_what_it_started_ends_with_its_minutes(self):
        session = gpu.Session(self.folder, gpu.RESERVE_S / 60, None)
        self.addCleanup(session.log.close)
        # As ninja: what it starts is in a group of its own, and is ended when it is asked to end.
        code, output = session.call("sh", "-c", "setsid sleep 60 & echo $!; trap 'kill $!; wait; exit 1' TERM; wait")
        self.assertEqual(code, 124)
        self.assertIn("the minutes were over", output)
        self.assertFalse(pathlib.Path("/proc", output.split()[0]).exists())

    def test_what_it_packs_is_enough_to_configure(self):
        packed = self.folder / "packed"
        done = script("pack", packed)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(list((packed / "data").glob("train-images*")))
        self.assertIn("not empty", script("pack", packed).stderr)
        usr, build = packed / "usr", self.folder / "build"
        # As on a machine whose system has the tools and none of the libraries: CMake also looks beside what is on PATH.
        tools = self.folder / "tools" / "bin"
        tools.mkdir(parents=True)
        for tool in TOOLS:
            if found := shutil.which(tool):
                (tools / tool).symlink_to(found)
        done = subprocess.run(
            [CMAKE, "-S", ROOT, "-B", build, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={NINJA}",
             f"-DCMAKE_PREFIX_PATH={usr};{TORCH_PREFIX}", f"-DLOCKSTEP_GLOO_INCLUDE={usr / 'include'}",
             f"-DXXHASH_INCLUDE={usr / 'include'}",
             "-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF"],
            capture_output=True, text=True, timeout=100, env={**os.environ, "PATH": str(tools)})
        self.assertEqual(done.returncode, 0, done.stderr)
        cache = (build / "CMakeCache.txt").read_text()
        for name in ("CLI11_DIR", "nlohmann_json_DIR", "GTest_DIR", "LIBDEFLATE_LIBRARY", "ZLIB_LIBRARY_RELEASE"):
            self.assertRegex(cache, f"{name}:[A-Z]+={usr}/")
        targets = subprocess.run([NINJA, "-C", build, "-t", "targets", "all"], capture_output=True, text=True, timeout=60).stdout
        there = {line.partition(":")[0] for line in targets.splitlines()}
        self.assertEqual({*gpu.TARGETS, *gpu.OF_KERNELS} - there, set())

    def test_lessons_it_names_are_there(self):
        self.assertLessEqual(set(gpu.IN_ALL_VARIANTS), {path.name for path in (ROOT / "lessons").iterdir()})


if __name__ == "__main__":
    CMAKE, NINJA, TORCH_PREFIX = (sys.argv.pop(1) for _ in range(3))
    unittest.main(verbosity=2)
