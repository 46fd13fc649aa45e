"""The code and the pictures on the pages are what the programs make; and Python's programs fold to plain code.

usage: page_code_test.py LOCKSTEP
"""

import ast
import builtins
import sys
import unittest

sys.dont_write_bytecode = True
import page_code  # noqa: E402

sys.path.insert(0, str(page_code.ROOT / "lessons" / "pictures"))
import draw  # noqa: E402
import figures  # noqa: E402

LOCKSTEP = None
PROGRAM = """
from twin import fault, note
import copy, time

def main():
    if fault("first"):
        one()  # wrong
    elif ready and not fault("second"):
        two()
    else:
        three()
    if rank == 1:
        if fault("third"):
            time.sleep(1)
    note(it=copy.copy(1))
    return 4 if fault("second") else 5

def oracle(ranks):
    return {}
"""


def unknown_names(text):
    """Those that a program reads and nowhere has: what was folded away with the harness, for example."""
    nodes = list(ast.walk(ast.parse(text)))
    known = {name.asname or name.name.split(".")[0] for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))
             for name in node.names}
    known |= {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.ExceptHandler))}
    known |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    known |= {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    read = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return read - known - set(dir(builtins)) - {"__file__", "__name__"}


class Pages(unittest.TestCase):
    def test_the_code_is_what_is_made(self):
        made = page_code.made(LOCKSTEP)
        self.assertGreater(len(made), 100)
        for page, text in made.items():
            self.assertEqual(page.read_text(encoding="utf-8"), text, f"{page}: python3 tests/docs/page_code.py makes it anew")

    def test_the_pictures_are_what_is_drawn(self):
        for file, text in draw.drawn().items():
            self.assertEqual(file.read_text(encoding="utf-8"), text, f"{file}: python3 lessons/pictures/draw.py draws it anew")

    def test_pictures_figures_are_compared_but_for_times(self):
        before = {"norm": 1.5, "calls": [{"op": "barrier", "entered_s": 0.1}], "ids": [4, 1]}
        later = {"norm": 1.5000001, "calls": [{"op": "barrier", "entered_s": 0.9, "left_s": 2.0}], "ids": [4, 1]}
        self.assertEqual(figures.differences(before, later), [])
        other = {"norm": 1.6, "calls": [{"op": "allreduce", "entered_s": 0.1}], "ids": [1, 4], "ranks": 2}
        self.assertEqual([line.split(":")[0] for line in figures.differences(before, other)],
                         ["norm", "calls[0].op", "ids[0]", "ids[1]", "ranks"])
        self.assertEqual(len(figures.differences(before, {**before, "ids": [4]})), 1)


class Fold(unittest.TestCase):
    def folded(self, slug):
        return [line.strip() for line in page_code.fold(PROGRAM, slug).splitlines() if line.strip()]

    def test_one_branch_is_left_and_nothing_of_the_harness(self):
        self.assertEqual(self.folded(""), ["def main():", "if ready:", "two()", "else:", "three()", "return 5"])
        self.assertEqual(self.folded("first"), ["def main():", "one()  # wrong", "return 5"])
        self.assertEqual(self.folded("second"), ["def main():", "three()", "return 4"])
        self.assertEqual(self.folded("third")[-4:], ["three()", "if rank == 1:", "time.sleep(1)", "return 5"])

    def test_what_cannot_be_folded_is_refused(self):
        with self.assertRaises(ValueError):
            page_code.fold("if not (fault('one') or rank):\n    pass\n", "other")

    def test_every_program_folds_to_python(self):
        self.assertGreater(len(page_code.programs()), 50)
        for slug, path in page_code.programs().items():
            broken, right = (page_code.fold(path.read_text(encoding="utf-8"), which) for which in (slug, ""))
            self.assertNotEqual(broken, right, slug)
            for text in (broken, right):
                self.assertEqual(unknown_names(text), set(), f"{path.name}, {slug}")
                for word in ("fault(", "note(", "oracle"):
                    self.assertNotIn(word, text)


if __name__ == "__main__":
    LOCKSTEP = sys.argv.pop(1)
    unittest.main(verbosity=2)
