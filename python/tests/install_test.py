"""The package as pip builds and installs it: from a copy of the sources without a build folder, in a folder with a
space, into an environment that has nothing but torch. The network is not used.

usage: python3 install_test.py            run by a Python that has torch and scikit-build-core
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
JOB = ROOT / "python/tests/job.py"
START = ROOT / "python/tests/start.py"


class Install(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep test ")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def call(self, *command, timeout=120):
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("LOCKSTEP_", "PYTHON"))}
        environment = {**inherited, "OMP_NUM_THREADS": "1", "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        return subprocess.run([str(part) for part in command], check=False, capture_output=True, text=True,
                              timeout=timeout, env=environment, cwd=self.folder)

    def test_pip_builds_and_installs_it_and_the_command_names_a_fault(self):
        tree = self.folder / "a tree"
        for part in ("common", "lessons", "python", "reports/html"):
            shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
        environment = self.folder / "an environment"
        venv.create(environment, with_pip=True)
        [packages] = environment.glob("lib/python3*/site-packages")
        (packages / "torch.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
        python = environment / "bin/python"

        done = self.call(python, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-w", self.folder,
                         tree / "python", timeout=800)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        [wheel] = self.folder.glob("lockstep_torch-*.whl")
        names = zipfile.ZipFile(wheel).namelist()
        sources = [f"lockstep_torch/{file.name}" for file in (tree / "python/lockstep_torch").iterdir()
                   if file.is_file()]
        built = [name for name in names if "/_extension" in name]
        self.assertEqual(len(built), 1)
        of_the_page = [f"lockstep_torch/{file.relative_to(tree / above)}" for above, pattern in (
            ("reports", "html/**/*"), (".", "lessons/*/pitfalls/*.md")) for file in (tree / above).glob(pattern)
            if file.is_file()]
        self.assertEqual(sorted(name for name in names if ".dist-info/" not in name),
                         sorted([*sources, *built, *of_the_page, "lockstep_torch/built_for.py"]))

        done = self.call(python, "-m", "pip", "install", "--no-deps", wheel)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        lockstep = environment / "bin/lockstep"
        done = self.call(lockstep, "watch", "--into", "the traces", "--", python, START, 2, JOB, "no-set-epoch")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("missing-set-epoch", done.stderr)
        found = json.loads(self.call(lockstep, "diagnose", "--json", "the traces").stdout)["findings"]
        self.assertEqual([(one["pitfall"], one["step"]) for one in found], [("missing-set-epoch", 7)])
        self.assertEqual({place["file"] for one in found for place in one["places"]}, {str(JOB)})
        done = self.call(lockstep, "report", "the traces")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"{JOB}:", (self.folder / "the traces/report.html").read_text(encoding="utf-8"))


if __name__ == "__main__":
    headers = pathlib.Path(sysconfig.get_paths()["include"], "Python.h")
    if not importlib.util.find_spec("scikit_build_core") or not headers.exists():
        print("skipped: pip builds the package with scikit-build-core and Python's headers (Debian: python3-dev)")
        sys.exit(77)
    unittest.main()
