"""A page's template filled in, and written: of lessons, or of a job."""

import os
import pathlib
import sys
import tempfile

import jinja2
import markupsafe

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


def template_of(name):
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(HERE / "templates"), autoescape=True,
                                     undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    environment.globals.update(run_id=pictures.run_id)
    environment.filters.update(number=number, listed=listed, verdict=summary.in_words)
    return environment.get_template(name)


def run(main):
    """A page's script. Ctrl-C is no stack trace."""
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)


def written(command, file, make):
    """The exit code of `command`, which writes the page that `make` gives. The owner alone can read it, as the traces."""
    try:
        write(file, make(), 0o600)
    except OSError as error:
        print(f"lockstep {command}: {error.filename or file}: {error.strerror}.", file=sys.stderr)
        return 3
    print(f"{file}: {file.stat().st_size / 1e6:.1f} MB")
    return 0


def write(file, text, mode=0o644):
    """Whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=file.parent, delete=False) as new:
        new.write(text)
    os.chmod(new.name, mode)
    os.replace(new.name, file)
