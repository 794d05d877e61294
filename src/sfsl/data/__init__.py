"""Interactions of users with items: where they come from, and what one client holds of them."""

from sfsl.data.amazon import load_amazon
from sfsl.data.assemble import assemble, with_negatives
from sfsl.data.catalogue import Catalogue
from sfsl.data.catalogue_file import read_catalogue, write_catalogue
from sfsl.data.inspect import Inspection, inspect_table
from sfsl.data.interactions import Interactions, hold_out_last
from sfsl.data.lines import LoadReport
from sfsl.data.plain import load_csv, load_parquet, load_table, load_taobao
from sfsl.data.samples import NO_ROW, Samples
from sfsl.data.statistics import Statistics, describe
from sfsl.data.synthetic import SyntheticSettings, SyntheticTaobao, bayes_auc
from sfsl.data.words import NextWords, Role, Speech, Windows, load_shakespeare, speech_of

__all__ = [
    "NO_ROW",
    "Catalogue",
    "Inspection",
    "Interactions",
    "LoadReport",
    "NextWords",
    "Role",
    "Samples",
    "Speech",
    "Statistics",
    "SyntheticSettings",
    "SyntheticTaobao",
    "Windows",
    "assemble",
    "bayes_auc",
    "describe",
    "hold_out_last",
    "inspect_table",
    "load_amazon",
    "load_csv",
    "load_parquet",
    "load_shakespeare",
    "load_table",
    "load_taobao",
    "read_catalogue",
    "speech_of",
    "with_negatives",
    "write_catalogue",
]
