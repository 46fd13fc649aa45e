"""A page's template filled in, and written: of lessons, of a job, or of two runs."""

import base64
import hashlib
import os
import pathlib
import signal
import sys

import jinja2
import markupsafe

import chart_library
import ctrl_c
import files
import pictures
import summary

HERE = pathlib.Path(__file__).resolve().parent


def number(value, style=".4g"):
    """A figure as text with its whole value beside it, for whoever reads the page by program."""
    if value is None:
        return "not a number"
    text = str(int(value)) if float(value).is_integer() and abs(value) < 1e6 else format(value, style)
    return markupsafe.Markup('<data value="{}">{}</data>').format(value, text)


def listed(values):
    return ", ".join(map(str, values)) or "none"


def environment():
    made = jinja2.Environment(loader=jinja2.FileSystemLoader(HERE / "templates"), autoescape=True,
                                     undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    made.globals.update(run_id=pictures.run_id)
    made.filters.update(number=number, listed=listed, verdict=summary.in_words)
    return made


def hashes(texts):
    """Of what stands in an element, as a policy names it."""
    return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in texts)


def page(file, drawn, /, **values):
    """A template filled in. Its policy lets nothing load, and nothing run but the scripts that are written here: a script that
    stood in a text of a job's would not run, even where it was not escaped."""
    templates = environment()
    style, own = (templates.get_template(each).render() for each in ("page.css", "page.js"))
    scripts = [chart_library.script(), own]
    policy = (f"default-src 'none'; script-src {hashes(scripts)}; style-src {hashes([style])}; img-src data:; "
              "base-uri 'none'; form-action 'none'")
    return templates.get_template(file).render(
        policy=policy, style=markupsafe.Markup(style), scripts=[markupsafe.Markup(text) for text in scripts],
        chart_data=drawn.for_page(), **values)


def run(main):
    """A page's script. Ctrl-C is no stack trace, nor is output that is closed, or full, or cannot hold a name's letters."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.reconfigure(errors="backslashreplace", line_buffering=True)
    try:
        if ctrl_c.TAKEN:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # from now on a file half written is taken away
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left in the buffer does not fail again
        print(f"lockstep: standard output: {error.strerror}.", file=sys.stderr)
        sys.exit(3)


def written(command, file, make):
    """The exit code of `command`, which writes the page that `make` gives. The owner alone can read it, as the traces."""
    try:
        files.write(file, make(), 0o600, files.PAGE)
    except OSError as error:
        print(f"lockstep {command}: {files.shown(error.filename or file)}: {error.strerror}.", file=sys.stderr)
        return 3
    print(f"{files.shown(file)}: {file.stat().st_size / 1e6:.1f} MB")
    return 0
