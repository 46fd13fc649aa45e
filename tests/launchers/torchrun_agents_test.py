"""A lesson under torchrun with two agents, as on two machines, one rank each. Both agents run here and meet at a
c10d rendezvous, which the first of them serves.

usage: torchrun_agents_test.py BIN      (run it with a Python that has torch)
"""

import importlib.util

import jobs


class TwoAgents(jobs.Job):
    deadline_s = 90  # an agent takes seconds to import torch

    def torchrun(self, lesson, variant, *options):
        """Both agents' ends, each Finished."""
        endpoint = f"127.0.0.1:{self.port()}"
        agents = [self.start([jobs.PYTHON, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1",
                              "--rdzv-backend", "c10d", "--rdzv-id", self.mark, "--rdzv-endpoint", endpoint,
                              "--local-addr", "127.0.0.1", *options, "--no-python", jobs.BIN / lesson,
                              "--variant", variant, "--folder", self.folder / "run",
                              "--json", self.folder / "report.json"],
                             f"agent{number}", GLOO_SOCKET_IFNAME="lo", TMPDIR=str(self.folder))
                  for number in range(2)]
        return [self.finish(agent) for agent in agents]

    def test_a_lesson_runs_and_is_judged_by_rank_zero(self):
        ends = self.torchrun("05_set_epoch", "epoch-differs-by-rank")
        self.assertEqual([end.code for end in ends], [0, 0], "\n\n".join(end.text for end in ends))
        self.assert_names(ends[0], self.folder / "report.json", "epoch-differs-by-rank")

    def test_a_job_whose_rank_is_killed_goes_on(self):
        ends = self.torchrun("18_elastic_restart", "correct", "--max-restarts", "1")
        self.assertEqual([end.code for end in ends], [0, 0], "\n\n".join(end.text for end in ends))
        self.assert_names(ends[0], self.folder / "report.json", None)
        for rank in range(2):
            self.assertTrue((self.folder / "run" / "attempt_1" / f"rank_{rank}.trace").exists(), ends[0].text)


if __name__ == "__main__":
    if importlib.util.find_spec("torch") is None:
        jobs.skip("this Python has no torch")
    jobs.main()
