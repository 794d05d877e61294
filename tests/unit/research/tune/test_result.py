"""What a search says of its choice: also that it was chance, or is worth nothing."""

import pytest

from sfsl.scores import Evaluation
from sfsl.settings.run import RunConfig
from sfsl_research.tune.folder import Plan
from sfsl_research.tune.halving import DEFAULT, ArmState
from sfsl_research.tune.result import summarize


def figures(loss: float) -> Evaluation:
    return Evaluation(
        100, auc=1 - loss, log_loss=loss, base_log_loss=0.69, popularity_auc=0.4, popularity_log_loss=0.6
    )


@pytest.mark.parametrize(
    ("valid", "test", "said"),
    [
        ((0.5, 0.4), (0.5, 0.4), []),
        ((0.5, 0.4), (0.5, 0.5), ["what validation devices saw was chance"]),
        ((0.5, 0.4), (0.5, 0.65), ["was chance", "no better than item popularity (AUC and log loss)"]),
        ((0.4, 0.5), (0.3, 0.9), ["No arm was better than the settings as they are"]),
        ((0.4, 0.4), (0.7, 0.9), ["No arm was better", "the base rate; more rounds may help"]),
    ],
)
def test_the_verdict(valid: tuple[float, float], test: tuple[float, float], said: list[str]) -> None:
    arms = {
        name: ArmState(test=figures(final)).with_point(3, figures(best))
        for name, best, final in zip((DEFAULT, "arm-1"), valid, test, strict=True)
    }
    plan = Plan(RunConfig(), {DEFAULT: {}, "arm-1": {"server.row_rate": 0.9}}, 10, 100)
    verdict = summarize(plan, [4, 8], arms).verdict
    assert all(one in verdict for one in said)
    known = ("was chance", "No arm was better", "more rounds may help")
    assert sum(one in verdict for one in known) == len(said)
    assert ("server.row_rate = 0.9" in verdict) is (valid[1] < valid[0])
