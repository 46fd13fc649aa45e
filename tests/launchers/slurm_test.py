"""A lesson under srun, in a Slurm of the test's own: munged, slurmctld and one slurmd for each of two nodes, all on
this machine, with their key, configuration, state and free ports in the test's folder. Nothing of the machine's own
Slurm or munge is read or written, and no systemd is needed.

usage: slurm_test.py BIN
"""

import os
import pathlib
import platform
import pwd
import re
import shlex
import shutil
import subprocess
import tempfile

import jobs

LAUNCHED = pathlib.Path(__file__).resolve().parents[2] / "python" / "tests" / "launched.py"
CONFIGURATION = """\
ClusterName=lockstep
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={controller_port}
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket={munge}/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool_%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd_%n.pid
PlugStackConfig={folder}/plugstack.conf
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SchedulerType=sched/builtin
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=2
NodeName=node0 NodeHostname={host} NodeAddr=127.0.0.1 Port={node_ports[0]} CPUs=2
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={node_ports[1]} CPUs=2
PartitionName=all Nodes=node0,node1 Default=YES MaxTime=INFINITE State=UP
"""


class Slurm(jobs.Job):
    deadline_s = 100  # a job in Python is three processes that import torch, beside those of other tests

    def setUp(self):
        # Slurm's configuration takes no path with a space in it.
        folder = tempfile.mkdtemp(prefix="lockstep-slurm-", dir="/tmp" if " " in tempfile.gettempdir() else None)
        self.addCleanup(shutil.rmtree, folder)
        super().setUp()
        self.cluster = pathlib.Path(folder)
        munge = self.cluster / "munge"
        munge.mkdir(mode=0o755)
        key = munge / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        for folder in (self.folder, self.cluster):
            folder.chmod(0o755)  # munge refuses a socket that others could not reach
        munged = self.daemon(["munged", "--foreground", "--force", "--num-threads", "2", f"--key-file={key}",
                              f"--socket={munge}/socket", f"--pid-file={munge}/pid", f"--log-file={munge}/log",
                              f"--seed-file={munge}/seed"], "munged")
        self.wait_until((munge / "socket").exists, "munged listens", munged)

        (self.cluster / "state").mkdir()
        (self.cluster / "plugstack.conf").touch()
        (self.cluster / "slurm.conf").write_text(CONFIGURATION.format(
            host=platform.node().split(".")[0], user=pwd.getpwuid(os.geteuid()).pw_name, folder=self.cluster,
            munge=munge, controller_port=self.port(), node_ports=[self.port(), self.port()]))
        controller = self.daemon(["slurmctld", "-D", "-c"], "slurmctld")
        nodes = []
        for node in ("node0", "node1"):
            (self.cluster / f"spool_{node}").mkdir()
            nodes.append(self.daemon(["slurmd", "-D", "-N", node], f"slurmd_{node}"))
        self.wait_until(self.nodes_are_idle, "both nodes are idle", controller, *nodes)

    def daemon(self, command, name):
        return self.start(command, name, **self.own_slurm())

    def own_slurm(self):
        return {"SLURM_CONF": str(self.cluster / "slurm.conf")}

    def nodes_are_idle(self):
        return self.answer("sinfo", "-h", "-N", "-o", "%t").split() == ["idle", "idle"]

    def answer(self, *command):
        return subprocess.run(command, text=True, capture_output=True, timeout=self.left_s(),
                              env=self.environment(**self.own_slurm()), stdin=subprocess.DEVNULL).stdout

    def lesson(self, srun, name, *arguments, **environment):
        return self.run_to_end(["srun", *srun, jobs.BIN / name, *arguments, "--folder", self.folder / "run",
                                "--json", self.folder / "report.json"], "srun", **self.own_slurm(), **environment)

    def test_a_lesson_on_one_node_is_judged_by_rank_zero(self):
        finished = self.lesson(["-N", "1", "-n", "2"], "05_set_epoch", "--variant", "epoch-differs-by-rank",
                               MASTER_ADDR="127.0.0.1", MASTER_PORT=str(self.port()))
        variant = self.assert_names(finished, self.folder / "report.json", "epoch-differs-by-rank")
        self.assertEqual(len(variant["losses"]), 2, "both ranks' losses")
        self.assertNotIn("every interface", finished.text)

    def test_two_nodes_are_two_machines_and_warned_of(self):
        finished = self.lesson(["-N", "2", "-n", "2"], "05_set_epoch", "--variant", "missing-set-epoch",
                               MASTER_ADDR="127.0.0.1", MASTER_PORT=str(self.port()), GLOO_SOCKET_IFNAME="lo")
        self.assert_names(finished, self.folder / "report.json", "missing-set-epoch")
        self.assertEqual(finished.text.count("every interface"), 1, finished.text)

    def test_a_job_that_hangs_ends_and_is_named(self):
        finished = self.lesson(["-N", "1", "-n", "2"], "09_hanging_collective", "--variant",
                               "rank-conditional-collective", "--timeout", "4",
                               LOCKSTEP_STORE=f"file://{self.cluster}/store")
        self.assertLess(finished.seconds, 15)  # 2 s is its operations' timeout
        self.assertNotEqual(finished.code, 0, finished.text)
        code, found = self.diagnose(self.folder / "run")
        self.assertEqual((code, [finding["pitfall"] for finding in found]), (1, ["rank-conditional-collective"]))

    def test_a_python_job_under_watch_is_recorded_and_named(self):
        package = jobs.BIN.parent / "python"
        if not list(package.glob("lockstep_torch/_extension*.so")):
            self.skipTest("the Python package is not built")
        finished = self.run_to_end(
            [jobs.PYTHON, "-m", "lockstep_torch.command_line", "watch", "--into", self.folder / "run", "--",
             "srun", "-N", "1", "-n", "2", jobs.PYTHON, LAUNCHED, "srun", "no-set-epoch"], "watch", **self.own_slurm(),
            PYTHONPATH=str(package), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(self.port()),
            TORCHINDUCTOR_CACHE_DIR=str(self.folder / "inductor"))  # torch makes it when autocast is imported
        self.assertEqual(finished.code, 0, finished.text)
        code, found = self.diagnose(self.folder / "run")
        self.assertEqual((code, [(one["pitfall"], one["ranks"]) for one in found]), (1, [("missing-set-epoch", [0, 1])]))

    def test_without_an_address_it_says_what_to_give(self):
        finished = self.lesson(["-N", "1", "-n", "2"], "05_set_epoch", "--variant", "correct")
        self.assertEqual(finished.code, 2, finished.text)
        for name in ("MASTER_ADDR", "MASTER_PORT"):
            self.assertIn(name, finished.text)

    def test_in_a_batch_script_the_lesson_is_its_own_launcher(self):
        script = self.folder / "script.sh"
        command = [jobs.BIN / "05_set_epoch", "--variant", "correct", "--json", self.folder / "report.json"]
        script.write_text(f"#!/bin/sh\nexec {shlex.join(map(str, command))}\n")
        job = self.answer("sbatch", "--parsable", "-N", "1", "-n", "2", "-o", self.folder / "batch.log", script).strip()
        self.assertTrue(job)
        self.wait_until(lambda: re.search("JobState=(COMPLETED|FAILED)", self.answer("scontrol", "show", "job", job)),
                        "the job is over", *self.processes)
        self.assertEqual(self.report(self.folder / "report.json")["verdict"], "as-expected")


if __name__ == "__main__":
    jobs.require("munged", "slurmctld", "slurmd", "srun", "sinfo", "sbatch")
    jobs.main()
