"""validate.py SCHEMA FILE...: each file against the JSON Schema; prints what does not fit and exits 1."""

import json
import sys

import jsonschema


def main(schema_file, *files):
    with open(schema_file, encoding="utf-8") as file:
        schema = json.load(file)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    wrong = 0
    for name in files:
        with open(name, encoding="utf-8") as file:
            document = json.load(file, parse_constant=lambda text: sys.exit(f"{name}: {text} is not JSON"))
        for error in validator.iter_errors(document):
            print(f"{name}: {error.json_path}: {error.message}")
            wrong = 1
    return wrong


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
