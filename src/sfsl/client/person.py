"""A deployed client as somebody to predict for: what its home holds, which never leaves it."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from sfsl.bundle.model import Bundle, Person
from sfsl.client.home import read_personal
from sfsl.data.assemble import require_usable
from sfsl.data.catalogue import WORD
from sfsl.data.own import Layout, load_own, load_own_words
from sfsl.errors import InputError


def person_of_client(bundle: Bundle, home: Path, layout: Layout) -> Person:
    """Return a client by its folder: the samples that its period froze, and the personal row that it keeps;
    where it keeps none yet, one that is rebuilt on these samples."""
    frozen = home / "data"
    if not frozen.is_file():
        raise InputError(f"{home} has no samples: it is no client's folder, or the client never took part")
    if bundle.catalogue.rows(WORD) is not None:
        speech, report = load_own_words(frozen, bundle.catalogue)
        require_usable(report, speech.spoken)
        return Person(np.asarray(speech.spoken, np.int64))
    data, report = load_own(frozen, bundle.catalogue, layout=layout)
    require_usable(report, data.item)
    kept = read_personal(home / "rows", bundle.spec) if (home / "rows").exists() else {}
    rows, values = next(iter(kept.values()), (np.zeros(0, np.int64), np.zeros((0, 1), np.float32)))
    person = Person(data.clicks.astype(np.int64), values[0] if len(rows) and rows[0] == 0 else None)
    if person.row is None:
        person = next(bundle.people(data))
    return replace(person, history=person.history[bundle.holds(person.history)])
