"""What a mutant is, which there are, and which of them are tried.

A mutant is one small change of one expression or statement. Which are tried is drawn by a digest of the seed
and of the change itself, not of its line number: edits elsewhere leave the sample as it is. Left alone is
what no behaviour hangs on: annotations, text, decorators, what type checkers alone read, ``__repr__``."""

import ast
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

# What is held to a number, by the folders of src/sfsl that make it up.
ROOMS = {
    "crypto": ("crypto",),
    "secagg": ("secagg",),
    "union": ("union",),
    "privacy": ("privacy",),
    "submodel": ("submodel",),
    "rounds": ("rounds",),
    "http": ("carriers/https", "service"),
}

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
}


@dataclass(frozen=True)
class Mutant:
    """One change: of ``before``, within the function or class ``where``, to ``after``."""

    room: str
    file: str
    where: str
    kind: str
    before: str
    after: str
    nth: int  # of changes that would read the same
    span: tuple[int, int]  # in bytes of the file
    first_line: int
    last_line: int
    at_import: bool

    @property
    def name(self) -> str:
        """What a mutant is called for as long as the changed code reads as it does."""
        words = "|".join((self.file, self.where, self.kind, self.before, self.after, str(self.nth)))
        return f"{self.file}:{self.where}:{self.kind}:{hashlib.sha256(words.encode()).hexdigest()[:8]}"

    def applied(self, source: bytes) -> bytes:
        """The file with this change."""
        start, end = self.span
        return source[:start] + self.after.encode() + source[end:]

    def diff(self, source: bytes) -> str:
        """The lines as they were and as they are, with the line number."""
        first, last = self.first_line - 1, self.last_line
        before = source.decode().splitlines()
        after = self.applied(source).decode().splitlines()
        now = after[first : last + len(after) - len(before)]
        marked = [f"- {one}" for one in before[first:last]] + [f"+ {one}" for one in now]
        return "\n".join([f"{self.file}:{self.first_line} in {self.where} ({self.kind})", *marked])


def mutants_of(sources: Path, room: str) -> list[Mutant]:
    """Every mutant of a room, in the order of its files."""
    return [
        mutant
        for folder in ROOMS[room]
        for path in sorted((sources / folder).glob("*.py"))
        for mutant in _of_file(room, str(path.relative_to(sources)), path.read_bytes())
    ]


def sample(mutants: Iterable[Mutant], seed: int, size: int) -> list[Mutant]:
    """The same ones for the same seed, whatever else there is; not two of one line."""
    drawn: dict[tuple[str, int], Mutant] = {}
    for mutant in sorted(mutants, key=lambda one: hashlib.sha256(f"{seed}|{one.name}".encode()).digest()):
        if len(drawn) == size:
            break
        drawn.setdefault((mutant.file, mutant.first_line), mutant)
    return list(drawn.values())


def _of_file(room: str, file: str, source: bytes) -> Iterator[Mutant]:
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    seen: Counter[tuple[str, str, str, str]] = Counter()
    for where, at_import, statement, node, kind, after in _changes(ast.parse(source), "", True):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        before = source[start:end].decode()
        what = (where, kind, before, after)
        yield Mutant(
            room, file, where, kind, before, after, seen[what], (start, end),
            statement.lineno if isinstance(node, ast.stmt) else node.lineno,
            (statement if isinstance(node, ast.stmt) else node).end_lineno or 0,
            at_import,
        )  # fmt: skip
        seen[what] += 1


_Change = tuple[str, bool, ast.stmt, ast.expr | ast.stmt, str, str]


def _changes(tree: ast.AST, where: str, at_import: bool) -> Iterator[_Change]:
    """All changes of the statements in ``tree``, functions and classes included."""
    for statement in _statements(tree):
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{where}.{statement.name}".lstrip(".")
            if statement.name == "__repr__" or _declares(statement.body):
                continue
            for default in (*statement.args.defaults, *statement.args.kw_defaults):
                yield from ((name, at_import, statement, *change) for change in _of_expression(default))
            yield from _changes(statement, name, False)
        elif isinstance(statement, ast.ClassDef):
            if not any(isinstance(base, ast.Name) and base.id == "Protocol" for base in statement.bases):
                yield from _changes(statement, f"{where}.{statement.name}".lstrip("."), at_import)
        elif not _for_type_checkers(statement):
            place = where or "module"
            yield from ((place, at_import, statement, *change) for change in _of_statement(statement))
            for part in _expressions(statement):
                yield from ((place, at_import, statement, *change) for change in _of_expression(part))
            yield from _changes(statement, where, at_import)


def _statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """The statements directly below, also those of handlers, cases and both branches."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.stmt):
            yield child
        elif isinstance(child, ast.ExceptHandler | ast.match_case):
            yield from _statements(child)


def _expressions(statement: ast.stmt) -> Iterator[ast.AST]:
    """What a statement computes itself; annotations and assertions are no part of it."""
    if isinstance(statement, ast.Assert):
        return
    if isinstance(statement, ast.AnnAssign):
        yield from [statement.value] if statement.value else []
        return
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.match_case):
            yield from [child.guard] if child.guard else []
        elif isinstance(child, ast.expr | ast.withitem):
            yield child


def _of_statement(node: ast.stmt) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
    if isinstance(node, ast.Raise | ast.AugAssign | ast.Delete) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await)
    ):
        yield node, "removed", "pass"
    elif isinstance(node, ast.If):
        yield node.test, "branches", f"(not ({ast.unparse(node.test)}))"
    elif isinstance(node, ast.Break):
        yield node, "loop", "continue"
    elif isinstance(node, ast.Continue):
        yield node, "loop", "break"


def _of_expression(tree: ast.AST | None) -> Iterator[tuple[ast.expr, str, str]]:
    """The changes of an expression and of those within it."""
    if tree is None or isinstance(tree, ast.JoinedStr) or _is_strict(tree):
        return
    if isinstance(tree, ast.expr):
        yield from ((node, kind, f"({ast.unparse(after)})") for node, kind, after in _replaced(tree))
    for child in ast.iter_child_nodes(tree):
        yield from _of_expression(child)


def _replaced(node: ast.expr) -> Iterator[tuple[ast.expr, str, ast.expr]]:
    match node:
        case ast.Compare(left, [op, *more], compared) if type(op) in _COMPARED:
            yield node, "comparison", ast.Compare(left, [_COMPARED[type(op)](), *more], compared)
        case ast.BoolOp(op, values):
            yield node, "boolean", ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(ast.Not(), operand):
            yield node, "boolean", operand
        case ast.UnaryOp(ast.USub(), operand):
            yield node, "arithmetic", operand
        case ast.BinOp(left, op, right) if (
            type(op) in _COMPUTED and not _is_text(left) and not _is_text(right)
        ):
            yield node, "arithmetic", ast.BinOp(left, _COMPUTED[type(op)](), right)
        case ast.IfExp(test, then, other):
            yield node, "branches", ast.IfExp(test, other, then)
        case ast.Constant(bool(value)):
            yield node, "constant", ast.Constant(not value)
        case ast.Constant(int(value)):
            yield node, "constant", ast.Constant(value + 1)
        case ast.Constant(float(value)):
            yield node, "constant", ast.Constant(value * 2 + 1)
        case ast.Call(ast.Name("range"), [last] | [_, last] | [_, last, _], []):
            off = [ast.BinOp(one, ast.Sub(), ast.Constant(1)) if one is last else one for one in node.args]
            yield node, "off by one", ast.Call(node.func, off, [])
        case ast.Call(ast.Name("min" | "max" as name), arguments, []) if len(arguments) > 1:
            yield node, "min and max", ast.Call(ast.Name("max" if name == "min" else "min"), arguments, [])
        case ast.Call(ast.Name("any" | "all" as name), arguments, []):
            yield node, "any and all", ast.Call(ast.Name("all" if name == "any" else "any"), arguments, [])
        case ast.Subscript(value, ast.Slice(lower, ast.expr() as upper, step)):
            later = ast.BinOp(upper, ast.Add(), ast.Constant(1))
            yield node, "off by one", ast.Subscript(value, ast.Slice(lower, later, step), node.ctx)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_strict(node: ast.AST) -> bool:
    """Whether it is that of ``zip(..., strict=True)``, which says what holds anyway, as an assertion does."""
    return isinstance(node, ast.keyword) and node.arg == "strict"


def _declares(body: Sequence[ast.stmt]) -> bool:
    """Whether a function has no body but a docstring or an ellipsis."""
    return all(isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) for one in body)


def _for_type_checkers(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.If)
        and isinstance(statement.test, ast.Name)
        and statement.test.id == "TYPE_CHECKING"
    )
