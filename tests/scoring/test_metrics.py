"""The name of a score consists of split, metric and part; and on which scale a metric is averaged."""

import math

import pytest

from headway import tasks
from headway.core.errors import UserError
from headway.scoring.metrics import ACCURACY, LOSS, METRICS, PERPLEXITY, Metric, metric_of, parsed, register


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("valid.perplexity", ("valid", "perplexity", "")),
        ("test.precision.os.path", ("test", "precision", "os.path")),
        ("corpus.txt.loss", ("corpus.txt", "loss", "")),
        ("valid-16.perplexity", ("valid-16", "perplexity", "")),
        ("valid.f1.loss", ("valid", "f1", "loss")),
        ("valid.unheard", ("valid", "unheard", "")),
        ("valid", ("valid", "", "")),
    ],
)
def test_names_are_parsed(name, parts):
    assert parsed(name) == parts


def test_an_unknown_metric_gets_the_nearest_name():
    with pytest.raises(UserError, match=r"did you mean 'valid\.perplexity'"):
        metric_of("valid.perplexty")
    for name in ("speed", ".loss", "valid.happiness"):
        with pytest.raises(UserError, match=r"write split\.metric"):
            metric_of(name)


def test_means_are_taken_where_effects_add_up():
    assert PERPLEXITY.mean([10.0, 1000.0]) == pytest.approx(100)
    assert LOSS.mean([1.0, 3.0]) == ACCURACY.mean([1.0, 3.0]) == 2


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_an_improvement_is_better_on_every_scale(metric):
    for better, worse in ((0.5, 0.6), (0.3, 0.4)):
        better, worse = (better, worse) if metric.lower_is_better else (worse, better)
        gain = metric.sign * (metric.natural(better) - metric.natural(worse))
        assert gain > 0 and metric.in_units(gain, metric.natural(worse)) > 0 and metric.relative(gain) > 0
        assert metric.back(metric.natural(better)) == pytest.approx(better)
        if not metric.is_ratio:
            assert metric.in_units(gain, 0.0) == pytest.approx(abs(better - worse) * metric.scale.display_factor)


def test_shares_stay_between_zero_and_one_and_logarithms_of_zero_are_avoided():
    assert [ACCURACY.possible(x) for x in (-0.1, 0.5, 1.2)] == [0, 0.5, 1]
    assert math.isnan(PERPLEXITY.natural(0.0)) and math.isinf(PERPLEXITY.back(1000.0))
    assert ACCURACY.unit == "points of accuracy" and PERPLEXITY.unit == "perplexity"


def test_names_of_metrics_are_unique():
    with pytest.raises(UserError, match="name clash"):
        register(Metric("loss", "tears", lower_is_better=True), __name__)
    assert METRICS["loss"] is LOSS


@pytest.mark.parametrize("task", tasks.TASKS.values(), ids=lambda task: task.kind)
def test_every_task_has_known_metrics_including_its_headline(task):
    assert LOSS in task.metrics and task.headline in task.metrics
    assert all(METRICS[metric.name] is metric for metric in task.metrics)
    assert all(metric.form_of in ("", *METRICS) for metric in task.metrics)
