"""The package as pip builds and installs it: from a copy of the sources without a build folder, in a folder with a
space, into an environment that has nothing but torch. The network is not used.

usage: python3 install_test.py [OTHER]      run by a Python that has torch and scikit-build-core
OTHER is a Python of the same version that has another torch.
"""

import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import unittest
import venv
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTS = ROOT / "python/tests"
SITE = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
OTHER = sys.argv.pop(1) if len(sys.argv) > 1 and os.path.exists(sys.argv[1]) else None


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="lockstep test ")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.tree = cls.folder / "a tree"
        for part in ("cmake", "common", "docs", "lessons", "python", "reports/html"):
            shutil.copytree(ROOT / part, cls.tree / part, ignore=shutil.ignore_patterns("__pycache__"))
        environment = cls.folder / "an environment"
        venv.create(environment, with_pip=True)
        [cls.packages] = environment.glob("lib/python3*/site-packages")
        cls.python, cls.lockstep = environment / "bin/python", environment / "bin/lockstep"
        cls.use_torch_of(sys.executable)
        cls.pip("wheel", "--no-build-isolation", "--no-deps", "-w", cls.folder, cls.tree / "python")
        [cls.wheel] = cls.folder.glob("lockstep_torch-*.whl")
        cls.pip("install", "--no-deps", "--ignore-installed", cls.wheel)  # this Python may have it, too

    @classmethod
    def use_torch_of(cls, python):
        cls.packages.joinpath("torch.pth").write_text(cls.call(python, "-c", SITE).stdout)

    @classmethod
    def call(cls, *command, timeout=120, **variables):
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("LOCKSTEP_", "PYTHON"))}
        environment = {**inherited, "OMP_NUM_THREADS": "1", "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        return subprocess.run([str(part) for part in command], check=False, capture_output=True, text=True,
                              timeout=timeout, env={**environment, **variables}, cwd=cls.folder)

    @classmethod
    def pip(cls, *arguments):
        done = cls.call(cls.python, "-m", "pip", *arguments, timeout=1500)
        if done.returncode:
            raise AssertionError(done.stdout + done.stderr)

    def watch(self, into):
        return self.call(self.lockstep, "watch", "--into", into, "--", self.python, TESTS / "start.py", 2,
                         TESTS / "job.py", "no-set-epoch")

    def test_the_wheel_has_the_package_and_nothing_else(self):
        names = zipfile.ZipFile(self.wheel).namelist()
        sources = [f"lockstep_torch/{file.name}" for file in (self.tree / "python/lockstep_torch").iterdir()
                   if file.is_file()]
        built = [name for name in names if "/_extension" in name]
        self.assertEqual(len(built), 1)
        said = (("reports", "html/**/*"), (".", "lessons/*/pitfalls/*.md"), ("docs", "findings.md"))
        of_pages = [f"lockstep_torch/{file.relative_to(self.tree / above)}"
                    for above, pattern in said for file in (self.tree / above).glob(pattern) if file.is_file()]
        self.assertEqual(sorted(name for name in names if ".dist-info/" not in name),
                         sorted([*sources, *built, *of_pages, "lockstep_torch/built_for.py"]))

    def test_the_command_names_a_fault(self):
        done = self.watch("the traces")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("missing-set-epoch", done.stderr)
        found = json.loads(self.call(self.lockstep, "diagnose", "--json", "the traces").stdout)["findings"]
        self.assertEqual([(one["pitfall"], one["step"]) for one in found], [("missing-set-epoch", 7)])
        self.assertEqual({place["file"] for one in found for place in one["places"]}, {str(TESTS / "job.py")})
        for name in ("missing-set-epoch", "replicas-diverged"):
            self.assertIn(name, self.call(self.lockstep, "explain", name).stdout)
        done = self.call(self.lockstep, "report", "the traces")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"{TESTS / 'job.py'}:", (self.folder / "report-the_traces.html").read_text(encoding="utf-8"))

    def test_the_package_s_own_tests_pass(self):
        for name in ("hooks_test.py", "watch_test.py"):
            with self.subTest(name):
                done = self.call(self.python, TESTS / name, self.packages, timeout=900)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertNotIn("skipped", done.stderr)

    @unittest.skipUnless(OTHER, "no Python with another torch was named")
    def test_under_another_torch_the_job_goes_on_and_is_told_so_in_one_sentence(self):
        versions = [self.call(python, "-c", "import torch; print(torch.__version__)").stdout.strip()
                    for python in (sys.executable, OTHER)]
        self.assertNotEqual(*versions)
        self.use_torch_of(OTHER)
        self.addCleanup(self.use_torch_of, sys.executable)
        done = self.watch("no traces")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("rank "), 2)
        said = [line for line in done.stderr.splitlines() if "was built for" in line]
        self.assertEqual(len(said), 1, done.stderr)
        self.assertIn("was built for torch {}, and this is torch {}. ".format(*versions), said[0])
        self.assertIn("pip install --no-build-isolation", said[0])
        self.assertFalse(list(self.folder.glob("no traces/*")))
        self.assertEqual(self.call(self.lockstep, "diagnose", "the traces").returncode, 2)


if __name__ == "__main__":
    headers = pathlib.Path(sysconfig.get_paths()["include"], "Python.h")
    if not importlib.util.find_spec("scikit_build_core") or not headers.exists():
        print("skipped: pip builds the package with scikit-build-core and Python's headers (Debian: python3-dev)")
        sys.exit(77)
    unittest.main()
