"""Make the file of film ratings that comes with the package: ``sfsl data sample`` writes it.

    python bench/make_sample.py src/sfsl/data/sample.csv.gz

The ratings are made up, from the simulated world of films with seed 0: stars follow the chance that a user
likes a film, with some noise, so that who liked what can be learned.
"""

import gzip
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from sfsl.data.synthetic import WORLDS, SyntheticTaobao

USERS, ITEMS, SCALE, SEED = 300, 350, 0.1, 0
BEGIN, DAYS = 1_420_070_400, 1_500  # from 2015 on
WIDEST = 180_000  # film ids, as catalogues have them


def main(path: Path) -> None:
    world = replace(WORLDS["films"].scaled(SCALE, users=USERS), items=ITEMS, categories=12, item_appeal=1.2)
    data = SyntheticTaobao(world, seed=SEED).interactions()
    assert data.probability is not None  # noqa: S101 -- this generator knows it
    rng = np.random.default_rng(SEED)
    films = np.sort(rng.choice(np.arange(1, WIDEST), len(data.items), replace=False))
    # Some people like most of what they see. What is liked gets 4 or 5 stars; how sure it was says how many.
    logit = np.log(data.probability / (1 - data.probability)) + rng.normal(0.3, 1.0, USERS)[data.user]
    chance = 1 / (1 + np.exp(-logit))
    liked = rng.random(len(data)) < chance
    sure = chance + rng.normal(0, 0.15, len(data))
    low = np.clip(np.ceil(3 - 2.2 * (0.55 - sure)), 1, 3)
    rating = np.where(liked, np.where(sure > 0.55, 5, 4), low).astype(int)
    # Each user comes some evenings, and rates several films on each, a minute or so apart.
    begin = BEGIN + rng.integers(0, DAYS // 2, len(data.users)) * 86_400
    days, seconds = rng.integers(1, 40, len(data)) * 86_400, rng.integers(8, 150, len(data))
    step = np.where(rng.random(len(data)) < 0.15, days, seconds)
    step[data.offsets[:-1][np.diff(data.offsets) > 0]] = 0
    passed = np.cumsum(step)
    stamp = begin[data.user] + 72_000 + passed - passed[data.offsets[:-1]][data.user]
    user = rng.permutation(USERS)[data.user] + 1
    order = np.lexsort((stamp, user))
    # Nobody rates a film twice: the first time counts.
    order = np.sort(np.unique(user[order] * np.int64(WIDEST) + films[data.item][order], return_index=True)[1])
    order = np.lexsort((stamp, user))[order]
    columns = (user, films[data.item], rating, stamp)
    lines = ["user_id,movie_id,rating,timestamp"]
    lines += [",".join(map(str, row)) for row in zip(*(one[order].tolist() for one in columns), strict=True)]
    path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), 9, mtime=0))
    size = path.stat().st_size
    print(f"{path}: {len(order):,} ratings of {len(films):,} films by {USERS} users, {size:,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
