"""Commands plain and under `lockstep watch`, which changes nothing of them: what their process inherits, the signals
that it gets, how it ends. They train nothing: awkward_test.py has pairs of programs that are recorded.

usage: python3 wrapper_test.py PACKAGE [-v] [Wrapper.test_NAME ...]      the folder that holds lockstep_torch
"""

import ctypes
import json
import os
import pathlib
import pty
import resource
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import termios
import time
import unittest
import unittest.mock

from package import FOLDER, LOCKSTEP, environment

sys.path.insert(0, str(FOLDER))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/support"))

import nothing_left

from lockstep_torch import processes, watching

DEADLINE_S = 60
WATCH = [*LOCKSTEP, "watch", "--"]
PR_SET_TIMERSLACK = 29
# What a process was given, but for what Python itself does with signals.
STATE = r"""if True:
    import json, os, resource, sys
    def of(name):
        with open("/proc/self/" + name, "rb") as file:
            return file.read()
    def link(number):
        try:
            return os.readlink(f"/proc/self/fd/{number}"), os.get_blocking(int(number))
        except OSError:
            return None
    print(json.dumps({
        "descriptors": {name: link(name) for name in os.listdir("/proc/self/fd") if link(name)},
        "variables": sorted(repr(each) for each in of("environ").split(b"\0")), "umask": os.umask(0),
        "nice": os.nice(0), "folder": os.getcwd(), "session": os.getsid(0),
        "limits": [resource.getrlimit(each) for each in range(16)],
        "group": os.getpgrp(), "out of memory": of("oom_score_adj").decode(), "users": [os.getresuid(), os.getresgid()],
        "timer slack": of("timerslack_ns").decode(), "processors": sorted(os.sched_getaffinity(0)),
        "arguments": sys.orig_argv, "children": of(f"task/{os.getpid()}/children").decode()}),
        file=open(os.environ["TELLS"], "w"))
"""
SIGNALS = ["grep", "-E", "^(Sig(Blk|Ign|Cgt)|NoNewPrivs|Seccomp|Cap...):", "/proc/self/status"]
# Says each signal that it gets, has SIGPWR followed by one to its own group, and ends with SIGUSR2.
COUNTS = """if True:
    import os, signal, sys
    numbers = {int(number) for number in sys.argv[1:]} | {signal.SIGUSR2}
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    print("ready", flush=True)
    while (number := signal.sigwait(numbers)) != signal.SIGUSR2:
        print(int(number), flush=True)
        if number == signal.SIGPWR:
            os.kill(0, signal.SIGTERM)
"""
ENDS = ("exit 0", "exit 6", "exit 255", "kill -9 $$", "kill -15 $$", "kill -2 $$", "echo out; echo err >&2; exit 3")


class Terminal:
    """A command in a session of its own, at a terminal that shows nothing of what is typed."""

    def __init__(self, command):
        self.shown = ""
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            settings = termios.tcgetattr(0)
            settings[3] &= ~termios.ECHO
            termios.tcsetattr(0, termios.TCSANOW, settings)
            os.execvpe(command[0], command, environment(PS1="type> ", TERM="dumb", HISTFILE=""))

    def type(self, text):
        os.write(self.terminal, text.encode())

    def until(self, words):
        """What was shown since the last call, up to these words."""
        while words not in self.shown:
            if not select.select([self.terminal], [], [], DEADLINE_S)[0]:
                raise AssertionError(f"not shown: {words}, but {self.shown}")
            self.shown += os.read(self.terminal, 1000).decode().replace("\r", "")
        said, _, self.shown = self.shown.partition(words)
        lines = [line for line in (said + words).splitlines() if not line.startswith("lockstep: ")]
        return "\n".join(lines)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.terminal)


def ignoring(*numbers):
    return lambda: [signal.signal(number, signal.SIG_IGN) for number in numbers]


def name_of(pid):
    return nothing_left.read(pid, "comm").decode().strip()


class Wrapper(nothing_left.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="pairs-"))
        self.addCleanup(subprocess.run, ["rm", "-r", self.folder], check=True)

    def one(self, command, before=(), **options):
        """Its exit code, as a shell has it, and what it wrote."""
        options = {"env": environment(), "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        done = subprocess.run([*before, *command], timeout=DEADLINE_S, check=False, **options)
        self.assertEqual(list(self.own_temporary.glob("lockstep-*")), [], "a folder of a job that recorded nothing")
        return done.returncode if done.returncode >= 0 else 128 - done.returncode, done.stdout, done.stderr

    def both(self, command, **options):
        return self.one(command, **options), self.one(command, WATCH, **options)

    def state(self, before, start_new_session=False, **options):
        tells = self.folder / "told"
        options.setdefault("env", environment(TELLS=str(tells)))
        code, _out, err = self.one([sys.executable, "-S", "-E", "-c", STATE, "an argument"], before,
                                   start_new_session=start_new_session, **options)
        self.assertEqual(code, 0, err)
        state = json.loads(tells.read_text())
        own = os.getsid(0), os.getpgrp()
        self.assertEqual((state.pop("session"), state.pop("group")) == own, not start_new_session)
        state["variables"] = [each for each in state["variables"] if not each.startswith("b'LOCKSTEP_")]
        for number in {"1", "2"} & {*state["descriptors"]}:  # pipes of this test, each time others
            state["descriptors"][number][0] = "a pipe"
        return state

    def states(self, **options):
        plain = self.state((), **options)
        self.assertEqual(self.state(WATCH, **options), plain)
        return plain

    def test_what_a_process_is_given(self):
        read, write = os.pipe()
        os.dup2(write, 9)
        self.addCleanup(os.closerange, min(read, write), 10)
        inherits = self.states(pass_fds=(read, write, 9))
        self.assertIn("9", inherits["descriptors"])
        with (self.folder / "input").open("w+b", buffering=0) as given:
            os.set_blocking(read, False)
            self.states(stdin=given, cwd=self.folder, umask=0o77)
            self.states(stdin=read, start_new_session=True)

    def test_limits_and_the_like(self):
        def less():
            os.nice(3)
            resource.setrlimit(resource.RLIMIT_NOFILE, (200, 300))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            pathlib.Path("/proc/self/oom_score_adj").write_text("300")
            ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 123_456)
            os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])
        self.assertEqual(self.states(preexec_fn=less)["nice"], 3)

    def test_variables_that_are_no_text_or_not_there(self):
        tells = os.fsencode(self.folder / "told")
        self.states(env={b"PYTHONPATH": os.fsencode(FOLDER),
                         b"TELLS": tells, b"ODD": b"\xff\xfe=\x1b", b"TMPDIR": os.fsencode(self.own_temporary)})

    def test_a_standard_stream_that_is_closed(self):
        for number in (0, 1, 2):
            with self.subTest(number):
                state = self.states(preexec_fn=lambda number=number: os.close(number))
                self.assertNotIn(str(number), state["descriptors"])
                told = self.folder / "told"
                self.one(["sh", "-c", f"readlink /proc/$PPID/fd/{number} >{told}"], WATCH,
                         preexec_fn=lambda number=number: os.close(number))
                self.assertEqual(told.read_text(), "/dev/null\n", "nothing of watch's is in its place")

    def test_what_is_done_with_signals(self):
        for name, given in (("usual", None), ("nohup", ignoring(signal.SIGHUP)),
                            ("of a script's background", ignoring(signal.SIGINT, signal.SIGQUIT)),
                            ("many", ignoring(signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP,
                                              signal.SIGCHLD, signal.SIGALRM, signal.SIGRTMIN, signal.SIGWINCH)),
                            ("blocked", lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, 40}))):
            with self.subTest(name):
                plain, watched = self.both(SIGNALS, preexec_fn=given)
                self.assertEqual(watched[:2], plain[:2])

    def test_signals_that_python_ignores_itself(self):
        """./lockstep says which ones it was started with."""
        ignored = 1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1
        given = ignoring(signal.SIGPIPE, signal.SIGXFSZ)
        plain, watched = self.both(SIGNALS, preexec_fn=given, restore_signals=False,
                                   env=environment(LOCKSTEP_IGNORED=f"{ignored:016x}"))
        self.assertEqual(watched[:2], plain[:2])
        plain, watched = self.both(["env"], env=environment(LOCKSTEP_IGNORED="0"))
        self.assertNotIn(b"LOCKSTEP_IGNORED", watched[1])

    def test_how_it_ends(self):
        for ends in ENDS:
            for name, given in (("usual", None), ("children are not waited for", ignoring(signal.SIGCHLD))):
                with self.subTest(f"{ends}, {name}"):
                    plain, watched = self.both(["sh", "-c", ends], preexec_fn=given)
                    self.assertEqual(watched[:2], plain[:2])
                    self.assertIn(plain[2], watched[2])
        with self.subTest("nobody reads standard error"):
            read, write = os.pipe()
            os.close(read)
            for stderr in (write, os.open("/dev/full", os.O_WRONLY)):
                plain, watched = self.both(["sh", "-c", "exit 6"], stderr=stderr)
                self.assertEqual(watched[:2], plain[:2])
                os.close(stderr)

    def test_what_comes_from_a_pipe_of_the_shell_s(self):
        for line in ("{} cat <(echo hi)", "echo hi | {} cat", "{} cat <<<hi",
                     "{} sh -c 'echo x >&3; echo y >&9' 3>&1 9>&1"):
            with self.subTest(line):
                found = [subprocess.run(["bash", "-c", line.format(before)], env=environment(), capture_output=True,
                                        timeout=DEADLINE_S, check=False) for before in ("", shlex.join(WATCH))]
                self.assertEqual(found[1].stdout, found[0].stdout)
                self.assertNotEqual(found[0].stdout, b"")
                self.assertEqual(found[1].returncode, found[0].returncode)

    def started(self, command, before, **options):
        job = subprocess.Popen([*before, *command], env=environment(), stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True, start_new_session=True, **options)
        self.addCleanup(job.__exit__, None, None, None)
        self.addCleanup(job.kill)
        self.assertEqual(job.stdout.readline(), "ready\n")
        return job

    def test_a_signal_comes_once_whoever_it_is_sent_to(self):
        """To the process that was started, or to its group, as a terminal, a shell and timeout(1) do."""
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGALRM,
                   signal.SIGRTMIN + 1, signal.SIGWINCH)
        counts = [sys.executable, "-c", COUNTS, *(str(int(number)) for number in (*numbers, signal.SIGRTMAX))]
        for before in ((), WATCH):
            job = self.started(counts, before)
            for send in (os.kill, os.killpg, os.kill, os.killpg):
                for number in numbers:
                    send(job.pid, number)
                    self.assertEqual(job.stdout.readline(), f"{number:d}\n")
                # Of those that are handled at once it is the last: the next one of a number is not merged with these.
                os.kill(job.pid, signal.SIGRTMAX)
                self.assertEqual(job.stdout.readline(), f"{signal.SIGRTMAX:d}\n")
            os.kill(job.pid, signal.SIGUSR2)
            self.assertEqual(job.communicate(timeout=DEADLINE_S)[0], "", before)
            self.assertEqual(job.returncode, 0)

    def counts(self, *numbers):
        """A job that says these, its process, and that of the witness."""
        job = self.started([sys.executable, "-c", COUNTS, *(str(int(number)) for number in numbers)], WATCH)
        witness = watching.Witness.NAME.decode()
        until = time.monotonic() + DEADLINE_S
        while time.monotonic() < until:  # it takes its name when it begins
            named = {name_of(pid): pid for pid in processes.descendants(job.pid)}
            if witness in named:
                return job, next(pid for name, pid in named.items() if name != witness), named[witness]
        raise AssertionError(named)

    def test_a_signal_comes_once_however_slow_the_machine_is(self):
        job, _pid, witness = self.counts(signal.SIGINT)
        os.kill(witness, signal.SIGSTOP)
        os.killpg(job.pid, signal.SIGINT)
        self.assertEqual(job.stdout.readline(), f"{signal.SIGINT:d}\n")
        time.sleep(0.5)
        os.kill(witness, signal.SIGCONT)
        os.kill(job.pid, signal.SIGUSR2)
        self.assertEqual(job.communicate(timeout=DEADLINE_S)[0], "")

    def test_a_job_in_another_group_gets_its_signals(self):
        for begins in ("os.setsid()", "os.setpgid(0, 0)"):
            for send in (os.kill, os.killpg):
                with self.subTest(begins, by=send.__name__):
                    code = f"import os, time; {begins}; print('ready', flush=True); time.sleep(60)"
                    job = self.started([sys.executable, "-c", code], WATCH)
                    send(job.pid, signal.SIGTERM)
                    self.assertEqual(job.wait(DEADLINE_S), 128 + signal.SIGTERM)

    def test_who_ends_watch_by_its_name_ends_the_job(self):
        """As `killall lockstep` and `pkill -f "lockstep watch"` do, one process after the other."""
        job, pid, _witness = self.counts(signal.SIGTERM)
        found = [each for each in (job.pid, *processes.descendants(job.pid)) if each != pid and
                 (name_of(each) == name_of(job.pid) or b"\0watch\0" in nothing_left.read(each, "cmdline"))]
        for each in found:
            os.kill(each, signal.SIGTERM)
        self.assertEqual(job.stdout.readline(), f"{signal.SIGTERM:d}\n", found)
        os.kill(job.pid, signal.SIGUSR2)
        self.assertEqual(job.communicate(timeout=DEADLINE_S)[0], "")

    def test_without_room_for_a_process_nothing_is_changed(self):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ()), os.listdir("/proc/self/fd")
        with unittest.mock.patch("os.fork", side_effect=BlockingIOError), self.assertRaises(BlockingIOError):
            watching.Witness()
        after = signal.pthread_sigmask(signal.SIG_SETMASK, before[0]), os.listdir("/proc/self/fd")
        self.assertEqual(after, before)

    def test_a_job_may_signal_its_own_group(self):
        """What came back to it from there would come for ever."""
        for before in ((), WATCH):
            numbers = str(int(signal.SIGPWR)), str(int(signal.SIGTERM))
            job = self.started([sys.executable, "-c", COUNTS, *numbers], before)
            os.kill(job.pid, signal.SIGPWR)
            self.assertEqual([job.stdout.readline().strip() for _ in numbers], list(numbers))
            os.kill(job.pid, signal.SIGUSR2)
            self.assertEqual(job.communicate(timeout=DEADLINE_S)[0], "")

    def test_a_terminal(self):
        """What is typed, and Ctrl-C, reach the job as without watch, and the terminal stays its group's."""
        script = ("import os, signal, sys\n"
                  "print(os.tcgetpgrp(0) == os.getpgrp(), flush=True)\n"
                  "got = []\nsignal.signal(signal.SIGINT, lambda *_: got.append('INT'))\n"
                  "signal.signal(signal.SIGCONT, lambda *_: got.append('CONT'))\n"
                  "print('asks', flush=True)\nprint('typed', input(), got, flush=True)\n")
        said = []
        for before in ((), WATCH):
            with Terminal([*before, sys.executable, "-c", script]) as terminal:
                said.append(terminal.until("asks"))
                terminal.type("\x03")
                os.killpg(terminal.pid, signal.SIGSTOP)
                self.assertTrue(os.WIFSTOPPED(os.waitpid(terminal.pid, os.WUNTRACED)[1]))
                os.killpg(terminal.pid, signal.SIGCONT)
                terminal.type("a line\n")
                said.append(terminal.until("]"))
                self.assertEqual(os.waitpid(terminal.pid, 0)[1], 0)
        self.assertEqual(said[2:], said[:2])
        self.assertIn("True", said[0])
        self.assertIn("typed a line ['INT', 'CONT']", said[1])

    def test_a_shell_with_job_control(self):
        """Ctrl-Z stops it, and it goes on in the foreground."""
        job = "sh -c 'echo be''gins; read line; echo got $line; exit 7' 2>/dev/null"
        for before in ("", shlex.join(map(str, WATCH))):
            with Terminal(["bash", "--norc", "-i"]) as terminal:
                terminal.until("type> ")  # what is typed before is lost in part
                terminal.type(f"{before} {job}\n")
                terminal.until("begins")
                terminal.type("\x1a")
                terminal.until("Stopped")
                terminal.until("type> ")
                terminal.type("fg\n")
                terminal.until("exit 7'")
                terminal.type("a line\n")
                terminal.until("got a line")
                terminal.until("type> ")
                terminal.type("echo code $?; exit 0\n")
                self.assertEqual(terminal.until("exit").partition("code ")[2].split()[0], "7")
                self.assertEqual(os.waitpid(terminal.pid, 0)[1], 0)

    def test_where_it_records_is_said_at_the_start(self):
        into = self.folder / "a folder\n\x1b[2J"
        done = subprocess.run([*LOCKSTEP, "watch", "--into", into, "--", "sh", "-c", "echo it begins >&2"], check=False,
                              env=environment(), capture_output=True, text=True, timeout=DEADLINE_S)
        shown = str(into).replace("\x1b", "\\x1b")
        self.assertTrue(done.stderr.startswith(f"lockstep: recording into {shown}\nit begins\n"), done.stderr)

    def test_a_folder_in_the_place_of_a_trace_leaves_nothing_open(self):
        (self.folder / "rank_0.trace").mkdir()
        before = os.listdir("/proc/self/fd")
        self.assertIsNone(processes.progress(self.folder, set()))
        self.assertEqual(os.listdir("/proc/self/fd"), before)

    def test_why_nothing_was_recorded(self):
        python = sys.executable
        for command, variables, said in (
                ([python, "-E", "-c", ""], {}, r"python[\d.]* -E does not look at PYTHONPATH"),
                ([python, "-u", "-I", "-c", ""], {}, r"python[\d.]* -I does not look at PYTHONPATH"),
                ([python, "-c", ""], {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, "AUTOLOAD=0 has torch load no recorder"),
                (["env", "TORCH_DEVICE_BACKEND_AUTOLOAD=0", python, "-c", ""], {}, "AUTOLOAD=0 has torch load no"),
                (["env", "-u", "PYTHONPATH", python, "-c", ""], {}, "env -u PYTHONPATH takes away"),
                (["env", "-i", python, "-c", ""], {}, "env -i takes away"),
                (["sh", "-c", f"PYTHONPATH=/x {shlex.quote(python)} -c ''"], {},
                 "another PYTHONPATH hides this package"),
                ([python, "-c", "", "-E"], {}, "no process of this job used torch.distributed")):
            with self.subTest(command=command[1:], **variables):
                _plain, watched = self.both(command, env=environment(**variables))
                self.assertEqual(watched[0], 0)
                self.assertRegex(watched[2].decode(), "nothing was recorded: .*" + said)


if __name__ == "__main__":
    unittest.main()
