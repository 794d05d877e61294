"""Whatever lasts is written through ``sfsl.durable``: nobody else opens files to write, or renames them."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Methods and functions that put bytes, names or folders on a disk.
WRITING = {
    "write_text", "write_bytes", "rename", "symlink", "ftruncate", "fdatasync", "fsync",
    "dump", "copyfile", "copy2", "copytree", "move", "mkdir", "makedirs", "touch", "tofile", "savetxt",
}  # fmt: skip
# Functions whose file is given to them: by whom it is opened is looked at instead.
SAVING = {"save", "savez", "savez_compressed", "savefig"}
# What may be where, and why.
ALLOWED = {
    ("src/sfsl/service/registry.py", "open"): "an empty file for SQLite, for its owner only",
    ("src/sfsl/cli/fetch.py", "open"): "a download, which is compared with a digest of what came",
    ("src/sfsl/cli/report.py", "mkdir"): "a folder of pictures, which can be drawn again",
    ("research/sfsl_research/reproduce/targets.py", "mkdir"): "a folder of pages, which are made again",
    ("research/sfsl_research/reproduce/sheets.py", "mkdir"): "a folder of pages, which are made again",
    ("research/sfsl_research/cli/swarm.py", "mkdir"): "made-up clients, for one run",
    ("research/sfsl_research/experiments/paper.py", "mkdir"): "data that are made again",
    **{
        (f"research/sfsl_research/mutation/{name}.py", call): "scratch of mutants, which are tried again"
        for name, call in (
            ("notes", "open"),
            ("notes", "write_bytes"),
            ("reach", "mkdir"),
            ("trial", "write_bytes"),
            ("trial", "touch"),
            ("trial", "write_text"),
            ("trial", "open"),
            ("trial", "copytree"),
        )
    },
    ("research/sfsl_research/trace/carriers.py", "write_text"): "scratch of a trace",
    ("research/sfsl_research/trace/carriers.py", "touch"): "scratch of a trace",
}


def writes(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        of = getattr(function.value, "id", "") if isinstance(function, ast.Attribute) else ""
        if (
            name in WRITING
            or (name == "replace" and of == "os")
            or (name in ("write", "link") and of == "os")
        ):
            yield node.lineno, name
        elif name == "open" and of == "os":
            if any(flag in ast.unparse(node) for flag in ("O_WRONLY", "O_RDWR", "O_CREAT")):
                yield node.lineno, name
        elif name == "open":
            given = [*node.args, *(one.value for one in node.keywords if one.arg == "mode")]
            parts = [part for one in given for part in ast.walk(one)]  # also of one mode or another
            modes = [
                one.value for one in parts if isinstance(one, ast.Constant) and isinstance(one.value, str)
            ]
            if any(set(mode) & set("wax+") and set(mode) <= set("rwaxbt+") for mode in modes):
                yield node.lineno, name
        elif name in SAVING and of in ("np", "torch", "figure"):
            # Into an open file, or a path?
            target = node.args[1] if of == "torch" else node.args[0]
            if not (isinstance(target, ast.Name) and target.id in ("file", "opened", "buffer")):
                yield node.lineno, name


def found(root: Path) -> list[tuple[str, str, int]]:
    places = []
    for folder in ("src/sfsl", "research/sfsl_research"):
        for path in sorted((root / folder).rglob("*.py")):
            name = str(path.relative_to(root))
            if name != "src/sfsl/durable.py":
                places += [(name, call, line) for line, call in writes(ast.parse(path.read_text()))]
    return places


def test_files_are_written_by_one_layer() -> None:
    places = found(ROOT)
    strange = [f"{name}:{line} {call}" for name, call, line in places if (name, call) not in ALLOWED]
    assert not strange, "write it with sfsl.durable, or say here why not"
    assert set(ALLOWED) == {(name, call) for name, call, _ in places}, "an exception that is not needed"


def test_the_search_finds_what_it_is_for(tmp_path: Path) -> None:
    bad = (
        'open(p, "w")', 'open(p, "ab")', 'p.open("r+b")', 'open(p, mode="x")', "p.write_text(t)",
        'p.open("r+b" if x else "rb")',
        "p.write_bytes(b)", "os.replace(a, b)", "os.rename(a, b)", "p.rename(q)", "np.save(p, a)",
        "np.savez(p / 'x', a=a)", "json.dump(a, f)", "os.open(p, os.O_WRONLY | os.O_APPEND)",
        "torch.save(a, path)", "figure.savefig(path)", "shutil.copyfile(a, b)", "os.write(1, b)",
    )  # fmt: skip
    for line in bad:
        assert list(writes(ast.parse(line))), line
    for line in (
        'open(p, "rb")',
        "open(p)",
        "text.replace(a, b)",
        "np.save(file, a)",
        "os.open(p, os.O_RDONLY)",
    ):
        assert not list(writes(ast.parse(line))), line
