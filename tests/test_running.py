"""The comparison itself: it must see a real difference and forgive a rounding boundary only."""

from __future__ import annotations

import pytest
import torch

from running import differences, largest_relative_difference


@pytest.mark.parametrize(
    ("truth", "other"),
    [
        ("loss 0.1234", "loss 0.1234"),
        ("loss 0.1234", "loss 0.1235"),
        ("loss 0.1299 of 5", "loss 0.1300 of 5"),
        ("lr 1.25e-05", "lr 1.26e-05"),
        ("0,8,0.9832234978675842,", "0,8,0.9832236170768738,"),
    ],
)
def test_same_lines(truth: str, other: str) -> None:
    assert differences(truth, other) == ""


@pytest.mark.parametrize(
    ("truth", "other"),
    [
        ("loss 0.1234", "loss 0.1236"),
        ("right 61/639", "right 62/639"),
        ("loss 0.1234\n", "loss 0.1234\nloss 0.1234\n"),
        ("loss 0.1234", "Loss 0.1234"),
        ("loss 0.1234", "loss 0.12340"),
        ("loss 0.1234", "loss nan"),
        ("0,8,0.9832234978675842,", "0,8,0.9842236170768738,"),
    ],
)
def test_other_lines(truth: str, other: str) -> None:
    assert differences(truth, other) != ""


def test_relative_difference_is_the_largest_of_all_tensors() -> None:
    truth = {"a": torch.tensor([1.0, 2.0]), "n": {"b": torch.tensor([100.0])}}
    other = {"a": torch.tensor([1.0, 2.1]), "n": {"b": torch.tensor([101.0])}}
    assert largest_relative_difference(truth, other) == pytest.approx(0.05, rel=1e-5)


def test_missing_tensor_is_an_error() -> None:
    with pytest.raises(AssertionError, match="other keys"):
        largest_relative_difference({"a": torch.ones(1)}, {"b": torch.ones(1)})
