"""A compiler that was installed without the shared libstdc++: cmake/SharedLibstdcxx.cmake links that of the system, or says
what is missing.

usage: libstdcxx_test.py CMAKE NINJA COMPILER
"""

import pathlib
import shlex
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CMAKE = NINJA = COMPILER = None
WRAPPER = """#!/bin/sh
case "$*" in
  -print-file-name=libstdc++.so) echo libstdc++.so ;;
  *) exec {compiler} -static-libstdc++ "$@" ;;
esac
"""
PROJECT = """cmake_minimum_required(VERSION 3.25)
project(linked LANGUAGES CXX)
{include}
add_executable(linked main.cpp)
"""


class Libstdcxx(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-libstdcxx-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.wrapper = self.folder / "c++"
        self.wrapper.write_text(WRAPPER.format(compiler=shlex.quote(COMPILER)))
        self.wrapper.chmod(0o755)
        (self.folder / "main.cpp").write_text("#include <iostream>\nint main() { std::cout << 1.5; }\n")

    def configure(self, include, *options):
        (self.folder / "CMakeLists.txt").write_text(PROJECT.format(include=include))
        return subprocess.run([CMAKE, "--fresh", "-S", self.folder, "-B", self.folder / "build", "-G", "Ninja",
                               f"-DCMAKE_MAKE_PROGRAM={NINJA}", f"-DCMAKE_CXX_COMPILER={self.wrapper}", *options],
                              check=False, capture_output=True, text=True, timeout=60)

    def libraries(self, include):
        done = self.configure(include)
        self.assertEqual(done.returncode, 0, done.stderr)
        subprocess.run([CMAKE, "--build", self.folder / "build"], check=True, capture_output=True, timeout=60)
        return subprocess.run(["ldd", self.folder / "build" / "linked"], check=True, capture_output=True, text=True,
                              timeout=20).stdout

    def test_the_shared_one_is_linked(self):
        self.assertNotIn("libstdc++.so.6", self.libraries(""))
        self.assertIn("libstdc++.so.6", self.libraries(f'include("{ROOT}/cmake/SharedLibstdcxx.cmake")'))

    def test_what_is_missing_is_said(self):
        done = self.configure(f'include("{ROOT}/cmake/SharedLibstdcxx.cmake")', "-DLOCKSTEP_LIBSTDCXX=NOTFOUND",
                              "-DCMAKE_FIND_LIBRARY_PREFIXES=none", "-DCMAKE_FIND_LIBRARY_SUFFIXES=none",
                              "-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF", "-DCMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH=OFF")
        self.assertNotEqual(done.returncode, 0)
        said = " ".join(done.stderr.split())  # where CMake wraps a message depends on the compiler's path
        self.assertIn("has no shared libstdc++", said)
        self.assertIn("-DLOCKSTEP_LIBSTDCXX=FILE", said)


if __name__ == "__main__":
    CMAKE, NINJA, COMPILER = sys.argv[1:4]
    del sys.argv[1:4]
    unittest.main()
