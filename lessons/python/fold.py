"""A lesson's program (lessons/NN_name/python) as plain code of one variant: with one fault or none, and no harness.

fault("...") is taken for true or false wherever it stands; what that decides goes, and the rest stays as it is written.
"""

import ast
import functools
import pathlib
import re
import textwrap

LESSONS = pathlib.Path(__file__).resolve().parents[1]


def file_of(program):
    """No two lessons have a program of one name."""
    [file] = LESSONS.glob(f"[0-9][0-9]_*/python/{program}.py")
    return file


@functools.cache
def programs():
    """{pitfall: its program's file}"""
    return {slug: path for path in sorted(LESSONS.glob("[0-9][0-9]_*/python/*.py"))
            for slug in re.findall(r'(?<!def )\bfault\("([a-z0-9-]+)"\)', path.read_text(encoding="utf-8"))}


def fold(source, slug="", keep_notes=False):
    """The program with the fault `slug`, or right; without the oracle, and the imports that only this needs. Its notes,
    by which the oracle judges, stay where somebody mends it."""
    while (folded := _fold_one(source, slug)) is not None:
        if folded == source:
            raise ValueError(f"not to be folded: {slug or 'the right program'}")
        source = folded
    return _without_unused_imports(_without_harness(_without_passes(source), keep_notes))


def _is_switch(node):
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "fault"


def _has_switch(node):
    return any(_is_switch(each) for each in ast.walk(node))


def _value(node, slug):
    """What a condition comes to: True, False, or the condition that is left."""
    if _is_switch(node):
        return node.args[0].value == slug
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = _value(node.operand, slug)
        return not inner if isinstance(inner, bool) else node
    if isinstance(node, ast.BoolOp):
        decides = isinstance(node.op, ast.Or)
        left = [value for value in (_value(each, slug) for each in node.values) if value is not (not decides)]
        if decides in left or not left:
            return decides if left else not decides
        return ast.BoolOp(node.op, left) if len(left) > 1 else left[0]
    return node


def _fold_one(source, slug):
    """The source with its last switch folded; None where there is none."""
    tree, lines = ast.parse(source), source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    if not source.isascii():
        raise ValueError("columns are counted in bytes: a program to be folded is ASCII")

    def span(node):
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    def replaced(place, text):
        return source[:place[0]] + text + source[place[1]:]

    switches = [node for node in ast.walk(tree) if isinstance(node, (ast.If, ast.IfExp)) and _has_switch(node.test)]
    if not switches:
        calls = [node for node in ast.walk(tree) if _is_switch(node)]
        return replaced(span(calls[-1]), str(_value(calls[-1], slug))) if calls else None
    node = max(switches, key=lambda each: span(each)[0])
    value = _value(node.test, slug)
    if not isinstance(value, bool):
        return replaced(span(node.test), ast.unparse(value))
    if isinstance(node, ast.IfExp):
        return replaced(span(node), source[slice(*span(node.body if value else node.orelse))])
    return _without_branches(source, lines, node, value)


def _without_branches(source, lines, node, value):
    """The source with the branch of an if that is taken, and without the others."""
    def block(statements):
        """Whole lines, with the comments above the first statement."""
        first = statements[0].lineno
        while lines[first - 2].lstrip().startswith("#"):
            first -= 1
        return "".join(lines[first - 1:statements[-1].end_lineno])

    indent = " " * node.col_offset
    is_elif = lines[node.lineno - 1].lstrip().startswith("elif")
    rest = node.orelse
    rest_is_elif = len(rest) == 1 and lines[rest[0].lineno - 1].lstrip().startswith("elif")
    if value:
        taken = f"{indent}else:\n{block(node.body)}" if is_elif else _moved(block(node.body), indent)
    elif rest_is_elif:
        text = "".join(lines[rest[0].lineno - 1:rest[0].end_lineno])
        taken = text if is_elif else text.replace("elif", "if", 1)
    elif rest:
        taken = f"{indent}else:\n{block(rest)}" if is_elif else _moved(block(rest), indent)
    else:
        taken = f"{indent}pass\n"  # it may be all that its block had
    return "".join(lines[:node.lineno - 1]) + taken + "".join(lines[node.end_lineno:])


def _moved(text, indent):
    return textwrap.indent(textwrap.dedent(text), indent)


def _without_passes(source):
    """Without each `pass` that was left behind, and the ifs that have nothing else."""
    def is_nothing(node):
        if isinstance(node, ast.If):
            return not node.orelse and all(map(is_nothing, node.body))
        return isinstance(node, ast.Pass)

    gone = {number for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt) and is_nothing(node)
            for number in range(node.lineno, node.end_lineno + 1)}
    return "".join(line for number, line in enumerate(source.splitlines(keepends=True), 1) if number not in gone)


def _without_harness(source, keep_notes):
    """Without the oracle, what notes for it, and their imports."""
    if keep_notes:
        source = re.sub(r"^from twin import .*$", "from twin import note", source, flags=re.MULTILINE)
    lines = source.splitlines(keepends=True)
    harness = {"oracles"} if keep_notes else {"oracles", "twin"}
    gone = set()
    for node in ast.walk(ast.parse(source)):
        called = node.value.func if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
        if (isinstance(node, ast.ImportFrom) and node.module in harness) or (
                getattr(called, "id", "") == "note" and not keep_notes) or (
                isinstance(node, ast.FunctionDef) and node.name == "oracle"):
            gone |= set(range(node.lineno, node.end_lineno + 1))
    text = "".join(line for number, line in enumerate(lines, 1) if number not in gone)
    while "\n\n\n\n" in text:
        text = text.replace("\n\n\n\n", "\n\n\n")
    return text


def _without_unused_imports(source):
    tree = ast.parse(source)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    lines = source.splitlines(keepends=True)
    for node in [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))][::-1]:
        if not any((name.asname or name.name).split(".")[0] in used for name in node.names):
            del lines[node.lineno - 1:node.end_lineno]
            if lines[node.lineno - 2].strip() == lines[node.lineno - 1].strip() == "":
                del lines[node.lineno - 1]
    return "".join(lines)
