"""Which column is which: guesses from names, for people to confirm. No loader acts on them."""

import re
from collections.abc import Collection, Sequence

FIELDS = ("user", "item", "label", "time", "category")

# What others call a field; a longer name that begins or ends so is meant too. Earlier words are likelier.
CALLED = {
    "user": ("user", "userid", "uid", "reviewerid", "customer", "customerid", "visitorid", "member",
             "account", "client", "device", "session", "reader", "profile"),
    "item": ("item", "itemid", "iid", "movie", "film", "product", "asin", "article", "track", "song",
             "artist", "book", "isbn", "video", "news", "ad", "sku", "page", "game", "recipe",
             "business", "venue"),
    "time": ("timestamp", "time", "datetime", "date", "ts", "when", "created", "unixreviewtime", "at"),
    "category": ("category", "genre", "genres", "cate", "department", "topic", "brand", "shop"),
    "label": ("label", "clicked", "click", "liked", "like", "rating", "ratings", "stars", "star", "score",
              "overall", "feedback", "preference", "target", "purchased", "bought", "rate", "vote"),
}  # fmt: skip


def simple(name: str) -> str:
    """A name without case, marks and the word id."""
    return re.sub(r"ids?$", "", re.sub(r"[^a-z0-9]", "", name.lower())) or name.lower()


def guessed_by_name(names: Sequence[str]) -> dict[str, str]:
    """The likeliest column of each field that some name fits, each column once."""
    found: dict[str, str] = {}
    for field, words in CALLED.items():
        ranked = [(rank, name) for name in names if (rank := _rank(name, words)) is not None]
        for _, name in sorted(ranked, key=lambda one: one[0]):
            if name not in found.values():
                found[field] = name
                break
    return found


def _rank(name: str, words: Sequence[str]) -> int | None:
    """How well a name fits: whole words first, then parts of it."""
    own = simple(name)
    known = [simple(word) for word in words]
    if own in known:
        return known.index(own)
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)
    return next((100 + place for place, word in enumerate(known) if word in map(simple, parts)), None)


def telling_column(names: Sequence[str], used: Collection[str]) -> str | None:
    """A column that seems to say what was liked, among those that mean nothing else yet."""
    return guessed_by_name([one for one in names if one not in used]).get("label")
