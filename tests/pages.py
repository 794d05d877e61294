"""The pages that a user reads, cut into blocks, and for each command on them: who runs it.

A page is run as one terminal session: its blocks of commands in their order, in one folder; a block with a
title is a file that is written there. What is not run so is named in ``PAGES``, with the test that runs it
elsewhere, or with the reason why none does.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TITLE = re.compile(r'title="([\w./-]+)"')
_PROGRAMS = "sfsl|python|pip|make|flwr|flower-\\w+|ray|docker|ssh-keygen|systemctl|install|apt-get|sudo"
_PROGRAMS += "|cp|export|curl|\\.venv/bin/\\w+"
_COMMAND = re.compile(rf"(?:{_PROGRAMS})\s")
_SHELL = ("sh", "bash", "console")


# On no page: they change the machine that a test runs on.
NEVER = ("systemctl ", "install -", "apt-get ", "docker ", "sudo ", "ssh ", "scp ")


@dataclass(frozen=True)
class Block:
    language: str
    title: str
    text: str

    @property
    def commands(self) -> list[str]:
        """The commands in it, each as one line; of a whole script only the script."""
        if self.language == "python":
            return [] if self.title else [self.text]
        if self.language not in _SHELL and not (self.language == "" and _COMMAND.match(self.text)):
            return []
        joined = self.text.replace("\\\n", " ")
        if re.search(r"^(?:for|while|until|if) ", joined, re.MULTILINE):
            return [self.text]
        return [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]


def blocks(page: str) -> Iterator[Block]:
    for about, text in _BLOCK.findall((ROOT / page).read_text()):
        title = _TITLE.search(about)
        yield Block(about.split()[0] if about.strip() else "", title[1] if title else "", text)


@dataclass(frozen=True)
class Page:
    """``given``: shell that makes what the page says its reader has. ``smaller``: text that is replaced, so
    that a test has the time. ``elsewhere``: by the beginning of a command, the file that runs it.
    ``not_run``: by the beginning of a command, why nothing does. ``fast``: it runs in the gate."""

    given: str = ""
    smaller: Mapping[str, str] = field(default_factory=dict)
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    not_run: Mapping[str, str] = field(default_factory=dict)
    fast: bool = False

    def excused(self, command: str) -> str:
        """Return the beginning under which a command is not run here; empty where it is."""
        known = (*self.elsewhere, *self.not_run, *NEVER)
        return next((begin for begin in known if command.startswith(begin)), "")

    def shrunk(self, text: str) -> str:
        for old, new in self.smaller.items():
            text = text.replace(old, new)
        return text


_CLICKS = """
python - <<'END'
import random
random.seed(1)
with open("clicks.csv", "w") as file:
    print("user,item,label,time", file=file)
    for user in range(60):
        for time in range(20):
            print(user, random.randrange(40), random.randrange(2), time, sep=",", file=file)
END
"""
_WORDS = """
python - <<'END'
import gzip, json
words = "to be or not to be that is the question whether tis nobler in the mind to suffer".split()
with gzip.open("roles.jsonl.gz", "wt") as file:
    for role in range(12):
        lines = [" ".join(words[(i + role) % 17] for i in range(k, k + 9)) for k in range(20)]
        print(json.dumps({"play": "p", "role": f"r{role}", "lines": lines}), file=file)
END
"""
_SERVER = """
sfsl serve serve.toml 2> serve.log &
until grep -q "Join with" serve.log; do sleep 1; done
"""
_FEW = "--set data.users=60 --set data.scale=0.03"
_AUDIT = "--trials 2000 --fleet 40 --cohort 10 --domain 500 --set-size 20"
_NEEDS_GPU = "needs a GPU; --device cpu is run by tests/unit/research/resident"
_NEEDS_INDEX = "installs from an index; test_fresh_install.py installs the same wheels"
_MODEL_OUT = "tests/integration/test_model_out.py"
_GUIDE, _README = "tests/integration/test_guide.py", "tests/integration/test_readme.py"

PAGES: dict[str, Page] = {
    "README.md": Page(
        given=_CLICKS + "printf '1\\n5\\n' > alice.txt; printf '5\\n9\\n' > bob.txt",
        smaller={
            "--set data.world=films --rounds 50": f"--set data.world=films --rounds 3 --clients 10 {_FEW}",
            "--scheme fl ": f"--scheme fl --rounds 3 --clients 10 {_FEW} ",
            "--resume ": "--resume --rounds 4 ",
            "sfsl tune clicks.csv": "sfsl tune clicks.csv --rounds 8 --clients 10 --arms 2 --device cpu",
            "--paper --out out/paper": f"--paper --out out/paper --rounds 2 --clients 10 --sums plain {_FEW}",
            "--clients 50 --rounds 30": "--clients 20 --rounds 2",
            "sfsl privacy audit  ": f"sfsl privacy audit {_AUDIT} ",
            "csv:clicks.csv --html": "csv:clicks.csv --set round.clients=20 --canaries 100 --html",
            "--clients 100 --length 143534": "--clients 10 --length 1000",
            "100 --domain 2000000000 --set-size 301": "10 --domain 2000000000 --set-size 30",
            "sfsl bench round --privacy cpp2": "sfsl bench round --clients 10 --privacy cpp2",
        },
        elsewhere={
            "make demo": "tests/integration/test_pages.py",
            "from sfsl import aggregate": _README,
            "import sfsl\n\nspeeds": _README,
            "attempts = sfsl.join(": _README,
            ".venv/bin/sfsl": _README,
            "sfsl reproduce fig-communication": "tests/unit/research/reproduce/test_reproduce.py",
            "sfsl bench train": "tests/unit/research/bench/test_train.py",
            "sfsl data paper-size": "tests/unit/data/test_stored.py",
        },
        not_run={
            "make test": "is what runs the tests",
            "class MatrixFactorization": "is part of examples/own_model.py, which the next command runs",
            "sfsl run --data stored:paper-size": _NEEDS_GPU,
            "sfsl reproduce all": "takes hours; each target is run small by tests/unit/research/reproduce",
        },
    ),
    "docs/cookbook.md": Page(
        smaller={
            "sfsl run": f"sfsl run --clients 10 {_FEW}",
            "--clients 10 --set round.cohorts": "--set round.cohorts",
        }
    ),
    "docs/guide/containers.md": Page(elsewhere={"docker compose": "tests/integration/test_compose.py"}),
    "docs/guide/data.md": Page(
        given=_CLICKS + _WORDS + "gzip -k clicks.csv",
        smaller={
            "data, report = load_csv": "from sfsl.data import *\ndata, report = load_csv",
            "--sums plain --out out/words": "--sums plain --out out/words --rounds 2 --clients 5",
            "range(6000)": "range(60)",
        },
    ),
    "docs/guide/deployment.md": Page(
        given="sfsl keys authority tls\ncp examples/network.toml serve.toml\n" + _SERVER,
        smaller={
            "https://sfsl.example.org:8443 --ca authority.pem --clients 40 --rounds 20": (
                "https://127.0.0.1:8443 --ca out/serve/tls/authority.pem --clients 10 --rounds 2"
            )
        },
        elsewhere={
            "sfsl keys authority tls": _GUIDE,
            "sfsl keys server tls --host sfsl.example.org\n": _GUIDE,
            "cp tls/server.pem": _GUIDE,
            "sfsl keys client ada.key": _GUIDE,
            "sfsl catalogue make": _GUIDE,
            "sfsl serve /etc": _GUIDE,
            "sfsl join --server": _GUIDE,
            "sfsl catalogue grow": _GUIDE,
            "sfsl keys log": "tests/adversary/test_roster_log.py",
            "sfsl backup": "tests/integration/test_backup.py",
            "sfsl restore": "tests/integration/test_backup.py",
        },
        not_run={
            "sfsl join --log log.toml …": "is cut short; test_roster_log.py has clients that insist on a log"
        },
    ),
    "docs/guide/flower.md": Page(
        elsewhere={
            "flwr run": "tests/integration/test_flower_example.py",
            "flower-superlink": "bench/flower_parts.py",
            "flwr supernode register": "bench/flower_parts.py",
            "flower-supernode": "bench/flower_parts.py",
            "sfsl keys client": "tests/integration/test_flower_lying_server.py",
        },
        not_run={
            "pip install": _NEEDS_INDEX,
            "ssh-keygen": "bench/flower_parts.py makes such keys itself, for test_flower_deployment.py",
            "app = server_app(task)": "is in examples/flower, which test_flower_example.py runs",
            "python bench/flower_round.py": "takes ten minutes; test_flower_deployment.py has its parts",
        },
        fast=True,
    ),
    "docs/guide/hot.md": Page(
        elsewhere={
            "sfsl plan": "tests/integration/test_hot_guide.py",
            "sfsl run": "tests/integration/test_hot_guide.py",
        }
    ),
    "docs/guide/installing.md": Page(
        elsewhere={
            "python -m venv": "tests/integration/test_fresh_install.py",
            ".venv/bin/sfsl --version": "tests/integration/test_fresh_install.py",
            "pip install './sfsl": "tests/integration/test_fresh_install.py",
            "make release": "tests/integration/test_release.py",
        },
        not_run={
            ".venv/bin/pip": "is what make does for all tests",
            "pip install -e": "is what make does for all tests",
        },
    ),
    "docs/guide/metrics.md": Page(
        elsewhere={
            "sfsl run --out runs/first --track": "tests/unit/run/test_trackers.py",
            "sfsl serve my.toml --track": "tests/unit/run/test_trackers.py",
        },
        not_run={"tensorboard --logdir": "is TensorBoard's own, which the gate does not install"},
    ),
    "docs/guide/model.md": Page(
        smaller={"--clients 60 --rounds 40": "--clients 20 --rounds 2"},
        elsewhere={
            "sfsl export /var": _MODEL_OUT,
            "sfsl models": _MODEL_OUT,
            "sfsl predict --state": _MODEL_OUT,
            "sfsl predict films.zip --state": _MODEL_OUT,
        },
    ),
    "docs/guide/ray.md": Page(
        elsewhere={"sfsl run my.toml --engine ray": "tests/integration/test_ray_engine.py"},
        not_run={
            "pip install": _NEEDS_INDEX,
            "ray start": "test_ray_engine.py starts its cluster from Python, and others need machines",
        },
    ),
    "docs/guide/simulation.md": Page(
        given=_CLICKS,
        smaller={
            "--rounds 200 --clients 50": "--rounds 8 --clients 10 --arms 2 --device cpu",
            "tuned/tuned.toml": "tuned/tuned.toml --rounds 2 --sums plain",
        },
        elsewhere={"sfsl data paper-size": "tests/unit/data/test_stored.py"},
        not_run={"sfsl run --data stored:paper-size": _NEEDS_GPU},
    ),
    "docs/tutorials/sign-off.md": Page(smaller={"--canaries 20000": "--canaries 4000"}),
    "docs/tutorials/to-flower.md": Page(elsewhere={"flwr run": "tests/integration/test_flower_example.py"}),
    "examples/flower/README.md": Page(
        elsewhere={"flwr run": "tests/integration/test_flower_example.py"},
        not_run={"pip install": _NEEDS_INDEX},
    ),
}


def pages() -> list[str]:
    """Every page with commands for users, also those that nobody has named here."""
    found = [ROOT / "README.md", *ROOT.glob("docs/guide/*.md"), *ROOT.glob("docs/tutorials/*.md")]
    found += [ROOT / "docs/cookbook.md", *ROOT.glob("examples/**/*.md")]
    return sorted(str(path.relative_to(ROOT)) for path in found)


def session(page: str) -> str:
    """Return the page as a script for bash; empty where nothing of it is run here."""
    own, lines = PAGES.get(page, Page()), []
    for block in blocks(page):
        if block.title:
            lines.append(f"cat > {block.title} <<'END_OF_FILE'\n{block.text}END_OF_FILE")
        elif block.language == "python" and not own.excused(block.text):
            lines.append(f"python - <<'END_OF_FILE'\n{own.shrunk(block.text)}END_OF_FILE")
        elif block.language != "python":
            lines += [own.shrunk(one) for one in block.commands if not own.excused(f"{one}\n")]
    return "\n".join(lines)
