"""Every row of the promises under faults has tests, which exist, and which ctest -L fault runs.

usage: rows_test.py CTEST BUILD
"""

import sys
import unittest

import rows

CTEST = BUILD = None


class Rows(unittest.TestCase):
    def test_all_are_tested(self):
        self.assertEqual(rows.complaints(rows.rows(), rows.labels(CTEST, BUILD)), [])

    def test_what_is_missing_is_seen(self):
        table = {row: ("a fault", ["fault.a"]) for row in range(1, rows.ROWS + 1)}
        known = {"fault.a": ["fault"], "unit.b": ["unit"]}
        self.assertEqual(rows.complaints(table, known), [])
        for row, tests, said in ((7, [], "row 7 has no test"), (8, ["fault.gone"], "row 8 names fault.gone, which is no"),
                                 (9, ["unit.b"], "row 9 names unit.b, which has not the label"),
                                 (35, ["fault.a"], "there is no row 35")):
            wrong = rows.complaints({**table, row: ("a fault", tests)}, known)
            self.assertEqual(len(wrong), 1, wrong)
            self.assertIn(said, wrong[0])
        del table[30]
        self.assertEqual(rows.complaints(table, known), ["row 30 has no test"])


if __name__ == "__main__":
    CTEST, BUILD = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main(verbosity=2)
