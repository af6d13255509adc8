"""The duration of training, and the schedule of the learning rate."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import PydanticCustomError

from headway.core.spec import Spec
from headway.training.schedule import Constant, Cosine, Duration, LinearDecay, factor

AMOUNTS = st.one_of(st.integers(1, 10**18), st.floats(1e-12, 1e18, exclude_min=True))


class Holder(Spec):
    lasts: Duration


# Durations


@given(amount=AMOUNTS, unit=st.sampled_from(["steps", "epochs", "tokens"]))
def test_a_printed_duration_can_be_read(amount: float, unit: str):
    duration = Duration(float(amount), unit)
    assert Duration.parse(str(duration)) == duration
    holder = Holder(lasts=duration)
    assert Holder.model_validate_json(holder.model_dump_json()) == holder


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("500 steps", Duration(500, "steps")),
        ("1 step", Duration(1, "steps")),
        ("0.5 epochs", Duration(0.5, "epochs")),
        ("2.5M tokens", Duration(2_500_000, "tokens")),
        ("10k steps", Duration(10_000, "steps")),
        ("10K steps", Duration(10_000, "steps")),
        ("1e6tokens", Duration(1_000_000, "tokens")),
        ("1e-3 epochs", Duration(0.001, "epochs")),
        ("  3 epoch ", Duration(3, "epochs")),
    ],
)
def test_ways_to_write_a_duration(text: str, expected: Duration):
    assert Duration.parse(text) == expected


NOT_DURATIONS = """
    steps | 5 | 5 apples | -5 steps | 0 steps | 0.0 epochs | 1.2.3 steps | . steps | 5 G tokens | 1e999 steps
    | nan steps | inf steps | 5 steps 3 | five steps |
"""


@pytest.mark.parametrize("given", [*NOT_DURATIONS.split("|"), None, [], -3, True, math.nan], ids=repr)
def test_an_invalid_duration_is_refused_with_a_message(given):
    with pytest.raises(PydanticCustomError, match=r"such as '500 steps', '10 epochs' or '2\.5M tokens'"):
        Duration.parse(given)


@pytest.mark.parametrize("given", ["1e99 steps", "1e300M tokens", "1e19 epochs"])
def test_impossibly_long_durations_are_refused(given):
    with pytest.raises(PydanticCustomError, match=r"expected at most 9.2e\+18 (steps|tokens|epochs)$"):
        Duration.parse(given)


def test_for_a_bare_number_steps_are_suggested():
    with pytest.raises(PydanticCustomError, match="did you mean '500 steps'"):
        Duration.parse(500)


def test_printing():
    assert [str(Duration(a, u)) for a, u in [(500, "steps"), (1.0, "epochs"), (2.5e6, "tokens"), (0.25, "epochs")]] == [
        "500 steps",
        "1 epoch",
        "2500000 tokens",
        "0.25 epochs",
    ]


@pytest.mark.parametrize(
    ("duration", "steps"),
    [
        ("7 steps", 7),
        ("0.1 steps", 1),
        ("2 epochs", 26),
        ("0.5 epochs", 7),  # 6.5, rounded up
        ("100 tokens", 1),
        ("320 tokens", 1),
        ("321 tokens", 2),
        ("6.4k tokens", 20),
    ],
)
def test_durations_in_steps_are_rounded_up(duration: str, steps: int):
    assert Duration.parse(duration).in_steps(steps_per_epoch=13, tokens_per_step=320) == steps


@given(steps=st.integers(1, 10**6), tokens_per_step=st.integers(1, 10**6))
def test_whole_numbers_of_steps_are_not_rounded_up_by_rounding_errors(steps: int, tokens_per_step: int):
    assert Duration(float(steps * tokens_per_step), "tokens").in_steps(1, tokens_per_step) == steps


# Schedules


def rates(schedule, total: int, warmup: int = 0) -> list[float]:
    return [factor(schedule, step, warmup, total) for step in range(total)]


@pytest.mark.parametrize("schedule", [Constant(), LinearDecay(final=0.2), Cosine(final=0.2)], ids=lambda s: s.kind)
@pytest.mark.parametrize("warmup", [1, 4, 9])
def test_the_rate_warms_up_linearly_and_ends_at_its_final_value(schedule, warmup: int):
    found = rates(schedule, 20, warmup)
    assert found[: warmup + 1] == pytest.approx([(step + 1) / (warmup + 1) for step in range(warmup + 1)])
    assert found[warmup] == max(found) == 1.0
    assert found[-1] == pytest.approx(getattr(schedule, "final", 1.0))
    assert all(a >= b for a, b in zip(found[warmup:], found[warmup + 1 :], strict=False))
    assert min(found) > 0


def test_constant_is_constant():
    assert rates(Constant(), 5) == [1.0] * 5


def test_linear_is_a_straight_line():
    assert rates(LinearDecay(final=0.0), 5) == pytest.approx([1, 0.75, 0.5, 0.25, 0])
    assert rates(LinearDecay(final=0.5), 3) == pytest.approx([1, 0.75, 0.5])


def test_cosine_is_half_a_cosine():
    expected = [0.1 + 0.9 * (1 + math.cos(math.pi * k / 10)) / 2 for k in range(11)]
    assert rates(Cosine(final=0.1), 11) == pytest.approx(expected)
    assert rates(Cosine(final=0.1), 11)[5] == pytest.approx(0.55)


@given(total=st.integers(1, 50), warmup=st.integers(0, 60), final=st.floats(0, 1))
def test_rates_are_between_zero_and_one_at_any_length(total: int, warmup: int, final: float):
    for schedule in (Constant(), LinearDecay(final=final), Cosine(final=final)):
        assert all(0 <= rate <= 1 for rate in rates(schedule, total, warmup))
