"""A lesson under Open MPI's mpirun, two ranks on one machine. mpirun numbers the ranks and gives no address: the
caller does, as MASTER_ADDR and MASTER_PORT or as a file for the store.

usage: mpirun_test.py BIN
"""

import time

import jobs

MPIRUN = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2")


class Mpirun(jobs.Job):
    def lesson(self, name, *arguments, **environment):
        # Open MPI's own sockets and files stay on this machine and in the test's folder.
        local = {"OMPI_MCA_btl": "self,vader", "OMPI_MCA_oob_tcp_if_include": "lo",
                 "OMPI_MCA_orte_tmpdir_base": str(self.folder), "TMPDIR": str(self.folder), **environment}
        return self.run_to_end([*MPIRUN, jobs.BIN / name, *arguments, "--folder", self.folder / "run",
                                "--json", self.folder / "report.json"], "mpirun", **local)

    def test_a_lesson_runs_and_is_judged_by_rank_zero(self):
        finished = self.lesson("05_set_epoch", "--variant", "epoch-differs-by-rank",
                               MASTER_ADDR="127.0.0.1", MASTER_PORT=str(self.port()))
        variant = self.assert_names(finished, self.folder / "report.json", "epoch-differs-by-rank")
        self.assertEqual(len(variant["losses"]), 2, "both ranks' losses")
        self.assertNotIn("every interface", finished.text)  # of one machine

    def test_ranks_meet_through_a_file(self):
        (self.folder / "store").mkdir()
        finished = self.lesson("05_set_epoch", "--variant", "missing-set-epoch",
                               LOCKSTEP_STORE=f"file://{self.folder}/store/job")
        self.assertEqual(finished.code, 0, finished.text)
        self.assertEqual([found["pitfall"] for found in self.diagnose(self.folder / "run")[1]], ["missing-set-epoch"])

    def test_a_job_that_hangs_ends_and_is_named(self):
        began = time.monotonic()
        finished = self.lesson("09_hanging_collective", "--variant", "rank-conditional-collective", "--timeout", "4",
                               MASTER_ADDR="127.0.0.1", MASTER_PORT=str(self.port()))
        self.assertLess(time.monotonic() - began, 15)  # 2 s is its operations' timeout
        self.assertNotEqual(finished.code, 0, finished.text)
        code, found = self.diagnose(self.folder / "run")
        self.assertEqual((code, [finding["pitfall"] for finding in found]), (1, ["rank-conditional-collective"]))

    def test_without_an_address_it_says_what_to_give(self):
        finished = self.lesson("05_set_epoch", "--variant", "correct")
        self.assertEqual(finished.code, 2, finished.text)
        for name in ("MASTER_ADDR", "MASTER_PORT"):
            self.assertIn(name, finished.text)


if __name__ == "__main__":
    jobs.require("mpirun")
    jobs.main()
