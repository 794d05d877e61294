"""Models to begin with. Your own is as easy: see ``examples/own_model.py``."""

from sfsl.models.bst import BST
from sfsl.models.dien import DIEN
from sfsl.models.din import DIN
from sfsl.models.kinds import KINDS, bst, build_task, dien, din
from sfsl.models.logistic import LogisticRegression, logistic_regression
from sfsl.models.lstm import NextWordLSTM, next_word_lstm

__all__ = [
    "BST",
    "DIEN",
    "DIN",
    "KINDS",
    "LogisticRegression",
    "NextWordLSTM",
    "bst",
    "build_task",
    "dien",
    "din",
    "logistic_regression",
    "next_word_lstm",
]
