"""CPU seconds and memory of client and server, from what a round consists of and the speed of this machine.

Training is not in it: it depends on the model, not on the protocol.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sfsl.crypto.ring import F31, ring_named
from sfsl.plan.rows import RoundRows
from sfsl.plan.settings import COUNTED, PlanSettings
from sfsl.plan.sizes import Traffic
from sfsl.plan.speeds import Speeds
from sfsl.rounds.exchanges import Exchange

_SECRETS = 4  # that a client shares: a mask key and a seed for each of the two sums
_KEYS = 3  # public keys of a client, each of which the server tries
# Seconds per bit of who asked for what: unpacked, selected by column and packed again.
_BIT = 3e-9


@dataclass(frozen=True)
class Seconds:
    """CPU seconds by exchange, of one client and of the server."""

    client: dict[str, float]
    server: dict[str, float]


@dataclass(frozen=True)
class Memory:
    """Bytes at the peak of a round, in arrays and messages, without the interpreter and its libraries."""

    client: float
    server: float


def cpu(
    settings: PlanSettings, heard: Mapping[str, int], rows: RoundRows, sent: Traffic, speed: Speeds
) -> Seconds:
    """Predict the CPU seconds of a round in which so many clients answer each exchange."""
    shared, uniting, asking, updating = (heard[one] for one in COUNTED)
    union_mask = sent.union_words * (speed.mask_f31 if sent.encoding.ring == F31 else speed.mask_z32)
    summed = [(table, rows.tables[table.name]) for table in settings.model.summed]
    update_mask = (settings.model.dense_words + 2 * settings.bins) * speed.mask_z32
    own_words = sum(one.uploaded * table.words for table, one in summed)
    paired_words = sum(one.masked * table.words for table, one in summed)
    asked, union = (sum(getattr(one, name) for _, one in summed) for name in ("asked", "union"))
    indices = sum(one.union for table, one in summed if table.kind == "shared")
    trained = settings.model.dense + sum(one.real * table.width for table, one in summed)

    def read_up(exchange: str, clients: int) -> float:
        return clients * sent.up[exchange] * (speed.decode + speed.encode + speed.digest)

    client: dict[str, float] = {
        Exchange.CHECK_IN: _KEYS * speed.agreement,
        Exchange.INVITATION: (settings.clients - 1) * (speed.agreement + speed.seal)
        + _SECRETS * speed.share
        + 2 * settings.clients * speed.item
        + sent.down[Exchange.INVITATION] * speed.decode,
        Exchange.INBOUND: (shared - 1) * (speed.agreement + speed.seal)
        + shared * union_mask
        + settings.set_size * speed.sketch_in,
        Exchange.UNMASK_UNION: 0.0,
        Exchange.UNION: indices * speed.answer,
        Exchange.SUBMODEL: (asking - 1) * (speed.agreement + update_mask)
        + paired_words * speed.mask_rows
        + update_mask
        + own_words * speed.mask_z32
        + trained * speed.quantize
        + (asking - 1) * asked * _BIT
        + sent.down[Exchange.SUBMODEL] * speed.decode
        + sent.up[Exchange.SUBMODEL] * speed.encode,
        Exchange.UNMASK_UPDATE: 0.0,
    }
    lost_union, lost_update = shared - uniting, asking - updating
    pair_words = paired_words / max(1, asking - 1)
    server: dict[str, float] = {
        Exchange.CHECK_IN: settings.clients * _KEYS * speed.agreement,
        Exchange.INVITATION: read_up(Exchange.INVITATION, shared)
        + shared * settings.clients * 2 * speed.item
        + sent.down[Exchange.INVITATION] * speed.encode,
        Exchange.INBOUND: read_up(Exchange.INBOUND, uniting)
        + uniting * sent.union_words * speed.mask_z32
        + uniting * shared * speed.item
        + uniting * sent.down[Exchange.INBOUND] * speed.encode,
        Exchange.UNMASK_UNION: shared * speed.rebuild
        + uniting * shared * speed.item
        + uniting * union_mask
        + lost_union * uniting * (speed.agreement + union_mask)
        + indices * speed.sketch_out,
        Exchange.UNION: asking * (union + (asking - 1) * asked) * _BIT
        + asking * sent.down[Exchange.SUBMODEL] * speed.encode,
        Exchange.SUBMODEL: read_up(Exchange.SUBMODEL, updating)
        + updating * sent.update_words * speed.mask_z32
        + asking * sent.down[Exchange.SUBMODEL] * speed.encode,
        Exchange.UNMASK_UPDATE: asking * speed.rebuild
        + updating * asking * speed.item
        + updating * (update_mask + own_words * speed.mask_rows)
        + lost_update * updating * (speed.agreement + update_mask + pair_words * speed.mask_rows)
        + sum(one.union * table.width for table, one in summed) * speed.quantize,
    }
    return Seconds(client, server)


def memory(settings: PlanSettings, heard: Mapping[str, int], rows: RoundRows, sent: Traffic) -> Memory:
    """Predict the memory of the exchange that holds the most. A server holds all downloads at once."""
    word, asking = ring_named(settings.ring).word_bytes, heard[Exchange.UNION]
    summed = [(table, rows.tables[table.name]) for table in settings.model.summed]
    asked, union = (sum(getattr(one, name) for _, one in summed) for name in ("asked", "union"))
    dense = settings.model.dense_words + 2 * settings.bins
    asked_words = dense + sum(one.asked * table.words for table, one in summed)
    union_words = dense + sum(one.union * table.words for table, one in summed)
    masked, submodel = sent.up[Exchange.INBOUND], sent.down[Exchange.SUBMODEL]
    # The submodel as it came and as numbers, who asked for what, the update in double precision and words.
    updating = 2 * submodel + max(asking - 1, 1) * asked + 16 * dense + 2 * word * asked_words
    server_union = 2 * masked + 4 * heard[Exchange.INBOUND] * sent.down[Exchange.INBOUND]
    server_update = asking * (union + submodel) + 2 * word * union_words + 8 * union_words
    return Memory(max(4 * masked, updating), max(server_union, server_update))
