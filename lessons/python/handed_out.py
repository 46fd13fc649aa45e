"""What an exercise hands out: the program with its fault, who it is, and where to begin, without what gives it away."""

import ast
import io
import re
import tokenize

from programs import fold, lesson_with, page_of, programs, title_of
from prose import section, wrapped

MARK = "# Begin here: what is wrong is in this {}."


def right(slug):
    """The program as somebody may have mended it."""
    return fold(programs()[slug].read_text(encoding="utf-8"), keep_notes=True)


def broken(slug):
    return fold(programs()[slug].read_text(encoding="utf-8"), slug, keep_notes=True)


def text(slug):
    about = [f"Exercise of lesson {lesson_with(slug).name}: {title_of(slug)}",
             "What is seen: " + " ".join(section(page_of(slug), "Symptom").split()),
             "One thing in this program is wrong. Mend it. note(...) tells the check what came out: leave it as it is."]
    head = "\n#\n".join(wrapped(part, "# ") for part in about)
    verbs = "\n".join(f"#   ./lockstep exercise {verb} {slug} --python" for verb in ("check", "hint"))
    code = marked(without_the_answer(broken(slug), right(slug)), right(slug))
    return f"{head}\n#\n{verbs}\n\n{code}"


def without_the_answer(source, other):
    """Without the comments on lines that the right program has not."""
    known, lines = set(other.splitlines()), source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and lines[token.start[0] - 1] not in known:
            before = lines[token.start[0] - 1][:token.start[1]].rstrip()
            lines[token.start[0] - 1] = before or None
    return "".join(f"{line}\n" for line in lines if line is not None)


def marked(source, other):
    """With a comment above the functions, or the other statements of the module, that the right program has not as they
    are."""
    there = {name_of(node): node for node in ast.parse(other).body}
    lines = source.splitlines()
    for node in innermost(ast.parse(source).body, there)[::-1]:
        what = "function" if isinstance(node, ast.FunctionDef) else "class" if isinstance(node, ast.ClassDef) else "part"
        line = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
        lines.insert(line - 1, " " * node.col_offset + MARK.format(what))
    return "\n".join(lines) + "\n"


def innermost(body, there):
    """Of the statements of a body those that differ; of a class its methods, where only these do."""
    found = []
    for node in body:
        other = there.get(name_of(node))
        if isinstance(node, (ast.Import, ast.ImportFrom)) or (other and ast.dump(node) == ast.dump(other)):
            continue
        methods = []
        if isinstance(node, ast.ClassDef) and other:
            methods = innermost(node.body, {name_of(each): each for each in other.body})
        found += methods or [node]
    return found


def name_of(node):
    """By which a statement of a module, or of a class, is found in another one."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return node.name
    return re.sub(r"\W+", " ", ast.unparse(node).splitlines()[0])
