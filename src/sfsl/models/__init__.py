"""Models to begin with. Your own is as easy: see ``examples/own_model.py``."""

from sfsl.models.din import DIN, din
from sfsl.models.logistic import LogisticRegression, logistic_regression

__all__ = ["DIN", "LogisticRegression", "din", "logistic_regression"]
