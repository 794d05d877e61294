"""What a model is worth on data that are named: of a server or in a bundle, which know of no samples."""

from dataclasses import replace

import msgspec
import numpy as np

from sfsl.bundle.model import Bundle
from sfsl.bundle.rows import AtRest
from sfsl.data import Speech, load_shakespeare, speech_of
from sfsl.data.catalogue import WORD, Catalogue
from sfsl.data.own import in_catalogue
from sfsl.errors import InputError
from sfsl.run.fleet import Fleet, fleet_of_clicks, fleet_of_speech, load_interactions
from sfsl.run.load import Model
from sfsl.scores import Evaluation, evaluate
from sfsl.settings.run import DataSettings, RunConfig
from sfsl.simulate.engine import baselines_of, score_pool
from sfsl.simulate.rebuilt import rebuild_personal
from sfsl.submodel import ModelSpec
from sfsl.training import LocalSettings


def evaluate_on(model: Model | Bundle, data: DataSettings) -> tuple[Evaluation, Fleet]:
    """Evaluate on each user's last samples; rows of their own are rebuilt on those before. What the model's
    catalogue does not know is left out. Also returned: who was tested, on what."""
    if isinstance(model, Bundle):
        config, catalogue = model.config, model.catalogue
    else:
        about, named = model.described
        if named is None:
            raise InputError(f"{model.path} is of an app's own model; evaluate it in Python, with its task")
        config, catalogue = about.config, named
    fleet = _fleet(msgspec.structs.replace(config, data=data), catalogue)
    store = _at_rest(model, fleet.task.spec)
    local = replace(LocalSettings(**msgspec.structs.asdict(config.training)), compiled=False)
    rows = None
    if fleet.task.personal:
        rows = rebuild_personal(fleet.task, fleet.devices, store, local, seed=config.run.seed)
    scored = score_pool(fleet.task, fleet.test, store, rows)
    return evaluate(scored, baselines_of(fleet.task, fleet.train), model.correction), fleet


def _fleet(config: RunConfig, catalogue: Catalogue) -> Fleet:
    """Build the users of these data, in the rows of a catalogue."""
    if config.data.source == "shakespeare":
        roles, said = load_shakespeare(config.data.path)
        return fleet_of_speech(config, _in_words(speech_of(roles), catalogue), said)
    given, report = load_interactions(config.data, config.run.seed)
    data, _ = in_catalogue(given, catalogue)
    return fleet_of_clicks(config, data, report, replace(catalogue, users=len(data.users)))


def _in_words(speech: Speech, catalogue: Catalogue) -> Speech:
    words = tuple(str(word) for word in catalogue.table(WORD).names())
    rows = {word: row for row, word in enumerate(words)}
    row = np.array([rows.get(word, -1) for word in speech.vocabulary], np.int64)[speech.spoken]
    before = np.concatenate([[0], np.cumsum(row >= 0)])
    return Speech(words, before[speech.offsets], row[row >= 0].astype(np.int32))


def _at_rest(model: Model | Bundle, spec: ModelSpec) -> AtRest:
    if isinstance(model, Bundle):
        return model.store(spec)
    return AtRest(spec, model.dense, lambda table, rows: model.rows(table, rows.rows), model.round)
