"""Models to begin with. Your own is as easy: see ``examples/own_model.py``."""

from sfsl.models.bst import BST, bst
from sfsl.models.dien import DIEN, dien
from sfsl.models.din import DIN, din
from sfsl.models.logistic import LogisticRegression, logistic_regression
from sfsl.models.lstm import NextWordLSTM, next_word_lstm

__all__ = [
    "BST",
    "DIEN",
    "DIN",
    "LogisticRegression",
    "NextWordLSTM",
    "bst",
    "dien",
    "din",
    "logistic_regression",
    "next_word_lstm",
]
