"""Local training on submodels, and evaluation."""

from sfsl.scores import auc, auc_error_bound, auc_from_histograms, relative_scores, score_histograms
from sfsl.training.cohort import rebuild_cohort, train_cohort
from sfsl.training.local import (
    LocalUpdate,
    rebuild_client,
    reference_score,
    score_parts,
    score_samples,
    train_client,
)
from sfsl.training.task import ClientData, Task, click_loss
from sfsl.training.work import ClientWork, LocalSettings

__all__ = [
    "ClientData",
    "ClientWork",
    "LocalSettings",
    "LocalUpdate",
    "Task",
    "auc",
    "auc_error_bound",
    "auc_from_histograms",
    "click_loss",
    "rebuild_client",
    "rebuild_cohort",
    "reference_score",
    "relative_scores",
    "score_histograms",
    "score_parts",
    "score_samples",
    "train_client",
    "train_cohort",
]
