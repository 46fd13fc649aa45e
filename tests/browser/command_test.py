"""./lockstep report from its command line: what it writes, what it says of bad input, how long it takes. No browser.

Run by the Python of the project's environment: command_test.py
"""

import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import tempfile
import unittest

import made_up

ROOT = pathlib.Path(__file__).resolve().parents[2]
REPORT = ROOT / "reports" / "html" / "report.py"
JOB, COMPARE = REPORT.with_name("job_report.py"), REPORT.with_name("compare_report.py")
sys.path.insert(0, str(REPORT.parent))
import chart_library  # noqa: E402
import collect  # noqa: E402

DEADLINE_S = 60
MOST_SECONDS, MOST_BYTES = 5, 5_000_000


def call(*arguments):
    return subprocess.run([sys.executable, REPORT, *map(str, arguments)], capture_output=True, text=True, timeout=DEADLINE_S,
                          stdin=subprocess.DEVNULL)


class Command(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-report-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def made(self, *arguments):
        result = call("--reports", self.folder, *arguments)
        self.assertEqual(result.returncode, 0, result.stderr[-2000:])
        return result

    def page(self):
        """The page less the chart library's script."""
        text = (self.folder / "report.html").read_text(encoding="utf-8")
        script = chart_library.script()
        self.assertEqual(text.count(script), 1)
        return text.replace(script, "")

    def assert_has(self, text, *wanted, no=()):
        """Without the page in the message."""
        for word in wanted:
            self.assertTrue(word in text, f"{word!r} is not in the page")
        for word in no:
            self.assertFalse(word in text, f"{word!r} is in the page")

    def test_the_page_lies_beside_the_reports_or_where_it_is_asked_for(self):
        made_up.small(self.folder)
        self.assertIn("3 lessons", self.made().stdout)
        self.assertTrue((self.folder / "report.html").is_file())
        elsewhere = self.folder / "new" / "page.html"
        self.made("--out", elsewhere)
        self.assertEqual(elsewhere.read_bytes(), (self.folder / "report.html").read_bytes())

    def test_ctrl_c_while_it_imports_is_no_stack_trace(self):
        (self.folder / "jinja2.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
        for script in (REPORT, JOB, COMPARE):
            result = subprocess.run([sys.executable, script, "--help"], env={**os.environ, "PYTHONPATH": str(self.folder)},
                                    capture_output=True, text=True, timeout=DEADLINE_S, stdin=subprocess.DEVNULL)
            self.assertEqual((result.returncode, result.stderr), (-signal.SIGINT, ""), script)

    def test_a_full_run_s_page_is_small_and_soon_made(self):
        made_up.full_size(self.folder)
        self.made()  # the chart library's script is kept from now on
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.made()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        # Of the processor, not of the clock: other tests run beside this one.
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        size = (self.folder / "report.html").stat().st_size
        print(f"272 variants: {size / 1e6:.2f} MB in {seconds:.2f} s of the processor")
        self.assertLess(seconds, MOST_SECONDS)
        self.assertLess(size, MOST_BYTES)

    def test_what_cannot_be_read_is_left_out_with_the_reason(self):
        made_up.small(self.folder)
        (self.folder / "04_torn.json").write_text('{"lesson": "04_', encoding="utf-8")
        made_up.write(self.folder, {**made_up.report("05_other", []), "variants": [{"name": "x"}]})
        (self.folder / "build_times.json").write_text('{"benchmark": "build_times"}', encoding="utf-8")
        result = self.made()
        self.assertIn("3 lessons", result.stdout)
        self.assertRegex(result.stderr, r"left out 04_torn\.json: cannot be read: .*char")
        self.assertRegex(result.stderr, r"left out 05_other\.json: .*schema.*variants/0: 'part' is a required")
        self.assertNotIn("build_times", result.stderr)
        self.assert_has(self.page(), "<li>04_torn.json: cannot be read")

    def test_of_two_reports_of_a_lesson_the_newer_is_shown(self):
        made_up.write(self.folder, made_up.report("05_x", [made_up.variant("correct", "correct")], title="The older"))
        (self.folder / "05_x.json").rename(self.folder / "99_older.json")
        os.utime(self.folder / "99_older.json", (1, 1))
        made_up.write(self.folder, made_up.report("05_x", [made_up.variant("correct", "correct")], title="The newer"))
        self.assertIn("left out 99_older.json: 05_x.json is a newer report of 05_x", self.made().stderr)
        self.assert_has(self.page(), "The newer", no=("The older",))

    def test_a_report_of_version_1_is_read(self):
        newer = made_up.variant("correct", "correct")
        older = {{"kind": "form", "stall": "standstill"}.get(key, key): value for key, value in newer.items()}
        made_up.write(self.folder, {**made_up.report("05_x", [older]), "schema_version": 1})
        self.assertEqual(collect.collect(self.folder, self.folder).comparisons, [made_up.report("05_x", [newer])])

    def test_a_newer_run_of_a_single_variant_stands_in_its_place(self):
        first, second = (made_up.variant(name, "broken", losses=[[1.0]]) for name in ("one", "two"))
        for written, wanted in ((2, "as-expected"), (8, "not-named")):
            lesson, single = self.folder / "05_a.json", self.folder / "variants" / "05_a.json"
            made_up.write(self.folder, made_up.report("05_a", [first, second]))
            made_up.write(self.folder / "variants", made_up.report("05_a", [{**second, "verdict": "not-named"}]),
                          made_up.report("06_b", [first]))
            os.utime(lesson, (5, 5))
            os.utime(single, (written, written))
            shown = collect.collect(self.folder, self.folder).comparisons
            self.assertEqual([each["lesson"] for each in shown], ["05_a", "06_b"])
            self.assertEqual([(run["name"], run["verdict"]) for run in shown[0]["variants"]],
                             [("one", "as-expected"), ("two", wanted)])

    def test_two_variants_of_one_name(self):
        made_up.write(self.folder, made_up.report("05_x", [made_up.variant("correct", "correct")] * 2))
        result = call("--reports", self.folder)
        self.assertEqual(result.returncode, 3)
        self.assertIn("05_x.json: two variants have the name correct", result.stderr)

    def test_nothing_to_show_and_nowhere_to_write(self):
        for arguments, text in ((("--reports", self.folder), "there is no lesson's report in"),
                                (("--reports", self.folder / "none"), "there is no folder")):
            result = call(*arguments)
            self.assertEqual((result.returncode, result.stdout), (3, ""))
            self.assertIn(text, result.stderr)
            self.assertIn("./lockstep run all", result.stderr)
        made_up.small(self.folder)
        (self.folder / "file").write_text("")
        result = call("--reports", self.folder, "--out", self.folder / "file" / "page.html")
        self.assertEqual(result.returncode, 3)
        self.assertRegex(result.stderr, r"file.*: (Not a directory|File exists)")
        self.assertEqual(call("--no-such-option").returncode, 2)

    def test_results_that_are_missing_are_named(self):
        made_up.small(self.folder)
        (self.folder / "measured").mkdir()
        self.made("--measured", self.folder / "measured")
        self.assert_has(self.page(), "There is no sweep", "No result for: Time beside Python&#39;s (./lockstep bench ddp_step")

    def test_a_result_of_another_shape_is_named_and_the_others_are_shown(self):
        made_up.small(self.folder)
        (self.folder / "measured").mkdir()
        (self.folder / "measured" / "launch_time.json").write_text('{"ranks": 4}', encoding="utf-8")
        (self.folder / "measured" / "observe_overhead.json").write_bytes((ROOT / "reports/results/observe_overhead.json").read_bytes())
        self.made("--measured", self.folder / "measured")
        self.assert_has(self.page(), "the result is not as it used to be: KeyError", 'id="measured-overhead"',
                        no=('id="measured-python"',))

    def test_hostile_text_never_leaves_its_place(self):
        made_up.small(self.folder)
        self.made()
        self.assert_has(self.page(), "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;",
                        "\\u003c/script\\u003e\\u003cimg src=x onerror=alert(1)\\u003e", no=("<img", made_up.HOSTILE))
        self.assertEqual(self.page().count("</script>"), 3)

    def test_the_page_names_no_other_file(self):
        made_up.small(self.folder)
        self.made()
        self.assertEqual(re.findall(r'(?:src|href)="(?!#|data:,")[^"]*"', self.page()), [])

    def test_a_report_that_is_no_file_is_left_out(self):
        made_up.small(self.folder)
        os.mkfifo(self.folder / "fifo.json")
        (self.folder / "endless.json").symlink_to("/dev/zero")
        result = self.made()
        for name in ("fifo", "endless"):
            self.assertIn(f"left out {name}.json: cannot be read: ", result.stderr)


PAGE = '<meta name="generator" content="Lockstep">'


class Pages(unittest.TestCase):
    """The scripts behind `report DIR` and `compare A B --html FILE`, in a working directory of their own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-report-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name) / "parent" / "work"
        self.folder.mkdir(parents=True)

    def call(self, script, *arguments, **variables):
        told = made_up.job(findings=[made_up.finding("a \ud800 b")]) if script == JOB else made_up.comparison()
        return subprocess.run([sys.executable, script, *arguments], input=json.dumps(told).encode(), capture_output=True,
                              cwd=self.folder, timeout=DEADLINE_S, env={**os.environ, **variables})

    def there(self):
        return sorted(os.fsencode(file.relative_to(self.folder)) for file in self.folder.rglob("*"))

    def test_any_name_is_told_and_shown_in_any_locale(self):
        ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
        names = {b"caf\xe9": "caf\\xe9", "caf\xe9".encode(): "caf\xe9", b"a\x1b[31m\nb": "a\\x1b[31m\\nb"}
        for variables in ({}, {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}, ascii_only):
            for name, shown in names.items():
                with self.subTest(name=name, **variables):
                    page = name + b".html"
                    scripts = (JOB, [b"--out=" + page, b"/jobs/" + name]), (COMPARE, [page])
                    for script, arguments in scripts if variables else scripts[:1]:
                        result = self.call(script, *arguments, **variables)
                        self.assertEqual((result.returncode, result.stderr), (0, b""))
                        self.assertRegex(result.stdout.decode(), r"\A[^\x00-\x1f]*: \d\.\d MB\n\Z")
                        self.assertEqual(self.there(), [page])
                        text = (self.folder / os.fsdecode(page)).read_text(encoding="utf-8")
                        if script == JOB:
                            self.assertIn(f"<h1>/jobs/{shown}</h1>", text)
                        (self.folder / os.fsdecode(page)).unlink()

    def test_the_page_of_a_job_goes_into_the_working_directory(self):
        for name, page in (("traces", "report-traces.html"), ("traces/.", "report-traces.html"), ("a b/ü'/", "report-_xfc_.html"),
                           ("..", "report-parent.html"), ("/", "report-job.html"), ("-x", "report--x.html")):
            result = self.call(JOB, "--", name)
            self.assertEqual((result.returncode, result.stderr), (0, b""))
            self.assertTrue(result.stdout.decode().startswith(f"{page}: "), result.stdout)
            self.assertEqual(self.there(), [page.encode()])
            self.assertEqual((self.folder / page).stat().st_mode & 0o777, 0o600)
            (self.folder / page).unlink()

    def test_only_a_file_is_replaced_and_no_link_is_followed(self):
        page, other = self.folder / "page.html", self.folder / "other"
        other.write_text(PAGE)
        for make, said in ((lambda: page.write_text("somebody's"), "a file that is no page of Lockstep's"),
                           (lambda: page.symlink_to(other), "a link"), (lambda: page.symlink_to(self.folder / "none"), "a link"),
                           (page.mkdir, "a folder"), (lambda: os.mkfifo(page), "no regular file")):
            make()
            before = page.lstat().st_ino
            for script, arguments in ((JOB, ["--out=page.html", "traces"]), (COMPARE, ["page.html"])):
                result = self.call(script, *arguments)
                self.assertEqual((result.returncode, result.stdout), (3, b""))
                self.assertRegex(result.stderr.decode(), rf"\Alockstep \w+: page\.html: {said} is there; name another file\.\n\Z")
            self.assertEqual((page.lstat().st_ino, other.read_text(), len(self.there())), (before, PAGE, 2))
            page.rmdir() if page.is_dir() else page.unlink()
        page.hardlink_to(other)
        self.assertEqual(self.call(COMPARE, "page.html").returncode, 0)
        self.assertEqual((other.read_text(), self.there()), (PAGE, [b"other", b"page.html"]))

    def test_output_that_takes_nothing_is_said(self):
        for to, code, said in ((">/dev/full", 3, b"lockstep: standard output: No space left on device.\n"), (">&-", 0, b"")):
            result = subprocess.run(["bash", "-c", f'exec "$@" {to}', "bash", sys.executable, COMPARE, "page.html"],
                                    input=json.dumps(made_up.comparison()).encode(), capture_output=True, cwd=self.folder,
                                    timeout=DEADLINE_S)
            self.assertEqual((result.returncode, result.stderr), (code, said))

    def test_what_cannot_be_written_leaves_nothing(self):
        """Of a file that may have 64 KiB, the page has more."""
        limited = ["bash", "-c", 'ulimit -f 64; trap "" XFSZ; exec "$@"', "bash", sys.executable, COMPARE, "page.html"]
        result = subprocess.run(limited, input=json.dumps(made_up.comparison()).encode(), capture_output=True, cwd=self.folder,
                                timeout=DEADLINE_S, env=dict(os.environ))
        self.assertEqual((result.returncode, self.there()), (3, []))
        self.assertIn("File too large", result.stderr.decode())


if __name__ == "__main__":
    unittest.main(verbosity=1)
