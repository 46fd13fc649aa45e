"""What there is to show: the comparison reports of a folder and the results that are committed."""

import dataclasses
import json
import pathlib

import jsonschema

import files

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCHEMA = ROOT / "reports" / "schema" / "lesson.schema.json"


@dataclasses.dataclass
class Collected:
    comparisons: list  # by lesson's name
    measured: dict     # file's stem -> its content
    left_out: list     # (file, why)


def read(file):
    return json.loads(files.read_text(file))


RENAMED = {"form": "kind", "standstill": "stall", "stand": "state"}  # since version 1 of a comparison report


def of_this_version(value):
    if isinstance(value, dict):
        return {RENAMED.get(key, key): of_this_version(item) for key, item in value.items()}
    return [of_this_version(item) for item in value] if isinstance(value, list) else value


def read_comparison(file):
    content = read(file)
    if isinstance(content, dict) and content.get("schema_version") == 1 and isinstance(content.get("variants"), list):
        content = {**content, "schema_version": 2, "variants": of_this_version(content["variants"])}
    return content


def why_not(error):
    """In a line: where a report is not as its schema says, and how."""
    place = "/".join(str(part) for part in error.absolute_path)
    return f"not as lesson.schema.json says{', at ' + place if place else ''}: {error.message[:200]}"


def shortened(pictures):
    """The first few of every list: thousands of calls and ids, each written as the last, take longer to check than to
    draw."""
    if isinstance(pictures, dict):
        return {key: shortened(value) for key, value in pictures.items()}
    return [shortened(value) for value in pictures[:3]] if isinstance(pictures, list) else pictures


def to_check(comparison):
    if not isinstance(comparison.get("variants"), list):
        return comparison
    return {**comparison, "variants": [
        {**variant, "pictures": shortened(variant["pictures"])}
        if isinstance(variant, dict) and "pictures" in variant else variant for variant in comparison["variants"]]}


def why_left_out(validator, comparison):
    """None where a report can be shown."""
    error = jsonschema.exceptions.best_match(validator.iter_errors(to_check(comparison)))
    if error:
        return why_not(error)
    names = [variant["name"] for variant in comparison["variants"]]
    twice = sorted({name for name in names if names.count(name) > 1})
    return f"two variants have the name {twice[0]}" if twice else None


def comparisons_in(folder, validator, left_out):
    """[(file, content)] of a folder's comparison reports, the oldest first."""
    found = []
    for file in sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime_ns):
        try:
            content = read_comparison(file)
        except (OSError, ValueError, RecursionError) as error:
            left_out.append((files.shown(file.name), f"cannot be read: {error}"))
            continue
        if not isinstance(content, dict) or "lesson" not in content:
            continue
        if why := why_left_out(validator, content):
            left_out.append((files.shown(file.name), why))
        else:
            found.append((file, content))
    return found


def put_into(lesson, single):
    """The runs of `single` in the place of those of the same name; one that the lesson has not comes last."""
    for variant in single["variants"]:
        names = [other["name"] for other in lesson["variants"]]
        at = names.index(variant["name"]) if variant["name"] in names else len(names)
        lesson["variants"][at:at + 1] = [variant]


def collect(reports, measured):
    """Comparison reports of the folder `reports`, and every result in `measured`.

    Other results lie among the reports; those name no lesson. A file that cannot be read is left out, with the reason;
    of two reports of one lesson the newer one is shown. The folder `variants` in it has runs of single variants: a newer
    one stands in the place of the lesson's.
    """
    result = Collected([], {}, [])
    schema = read(SCHEMA)
    validator = jsonschema.validators.validator_for(schema)(schema)
    shown = {}  # by lesson: (file, its content)
    for file, content in reversed(comparisons_in(reports, validator, result.left_out)):
        if content["lesson"] in shown:
            why = f"{files.shown(shown[content['lesson']][0].name)} is a newer report of {content['lesson']}"
            result.left_out.append((files.shown(file.name), why))
        else:
            shown[content["lesson"]] = file, content
            result.comparisons.append(content)
    for file, content in comparisons_in(reports / "variants", validator, result.left_out):
        whole, lesson = shown.get(content["lesson"], (None, None))
        if lesson is None:
            shown[content["lesson"]] = file, content
            result.comparisons.append(content)
        elif file.stat().st_mtime_ns > whole.stat().st_mtime_ns:
            put_into(lesson, content)
    result.comparisons.sort(key=lambda comparison: comparison["lesson"])
    for file in sorted(measured.glob("*.json")):
        try:
            result.measured[file.stem] = read(file)
        except (OSError, ValueError, RecursionError) as error:
            result.left_out.append((files.shown(file.name), f"cannot be read: {error}"))
    return result
