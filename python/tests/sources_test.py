"""What pip builds is whole: no source of python/cmake/Alone.cmake calls a function of Lockstep that is in none of them.
The usual build checks less: its extension links whole libraries, but neither dist/ nor train/.

usage: sources_test.py BUILD      (the folder of the whole build, which has compiled each of them)
"""

import pathlib
import re
import subprocess
import sys
import unittest

PYTHON = pathlib.Path(__file__).resolve().parents[1]
BUILD = None


def objects():
    """Of the sources that Alone.cmake names, and of the folders that it takes whole, or but for some."""
    text = (PYTHON / "cmake" / "Alone.cmake").read_text(encoding="utf-8")
    listed = re.findall(r"(?<![\w/])\w+/\w+\.cpp", text.replace("${_lockstep}/", "").replace("src/", ""))
    whole = re.findall(r"\$\{_lockstep\}/(\w+)/\*\.cpp", text)

    def compiled(folder, library):
        return BUILD / "common" / "lockstep" / "CMakeFiles" / f"lockstep_{library}.dir" / folder

    return [*(compiled(folder, folder) / f"{name}.o" for folder, name in (each.split("/") for each in listed)),
            *(file for folder in whole for file in compiled(folder, folder).rglob("*.o")),
            *compiled("record", "recorder").glob("*.o"),
            *compiled("", "diagnose").glob("all_detectors*.o"),
            *(BUILD / "python" / "CMakeFiles" / "_extension.dir" / "src").glob("*.o")]


def symbols(which, files):
    said = subprocess.run(["nm", which, *files], capture_output=True, text=True, check=True, timeout=120).stdout
    return set(re.findall(r"\b(_Z\w*8lockstep\w*)", said))


class Sources(unittest.TestCase):
    def test_every_function_that_is_called_is_there(self):
        files = objects()
        self.assertGreater(len(files), 90)
        self.assertEqual([str(file) for file in files if not file.exists()], [])
        self.assertEqual(sorted(symbols("--undefined-only", files) - symbols("--defined-only", files)), [])


if __name__ == "__main__":
    BUILD = pathlib.Path(sys.argv.pop(1))
    unittest.main(verbosity=2)
