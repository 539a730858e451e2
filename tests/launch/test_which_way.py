"""The ways to use several devices that docs/which-way.md compares: each runs, and does what the page says."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import torch
from harness import Ended, Workshop, its_own_launch, torchrun

from running import TOLERANCE, largest_relative_difference

EXAMPLES = Path(__file__).parents[2] / "examples" / "which_way"
#: Ways that keep the numbers of one device, with what they need.
SAME = {
    "data_parallel": "torch",
    "samestep_data_parallel": "torch",
    "visible_devices": "torch",
    "accelerate_ddp": "accelerate",
}
#: Ways that are distributed programs, with what they need and their own launcher.
OWN = {
    "ddp": ("torch", "torchrun"),
    "ddp_spawn": ("torch", "python"),
    "ignite_ddp": ("ignite", "torchrun"),
    "lightning_ddp": ("lightning", "python"),
    "catalyst_ddp": ("catalyst", "python"),
}
#: Where samples are padded to equal shares, more are counted than there are.
RIGHT = re.compile(r"right \d+ of (\d+)")


def weights(shop: Workshop, name: str) -> object:
    return torch.load(shop.folder / name, weights_only=True)


def line(ended: Ended) -> str:
    """The line that every way ends with (frameworks print more)."""
    assert ended.code == 0, ended.err
    found = RIGHT.search(ended.out)
    assert found is not None, ended.out + ended.err
    return found[0]


def script(name: str) -> str:
    return str(EXAMPLES / f"{name}.py")


def need(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")


def real(shop: Workshop, *words: str) -> Ended:
    """`samestep run` as it is, not the stand-in of the launcher's own tests."""
    return shop.plain("-m", "samestep", "run", "--devices", "cpu:2", *words)


def test_every_way_is_listed() -> None:
    found = {path.stem for path in EXAMPLES.glob("*.py")} - {"task", "one_device", "measure"}
    assert found == SAME.keys() | OWN.keys()


@pytest.fixture(scope="module")
def one_device(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, object]:
    """What the program prints and leaves on one device, by plain Python."""
    made = Workshop(tmp_path_factory.mktemp("one-device"))
    return line(made.plain(script("one_device"), "one.pt")), weights(made, "one.pt")


@pytest.mark.parametrize("name", ["one_device", *SAME])
def test_the_numbers_of_one_device(shop: Workshop, one_device: tuple[str, object], name: str) -> None:
    need(SAME.get(name, "torch"))
    assert one_device[0].endswith("of 97")
    assert line(real(shop, script(name), "found.pt")) == one_device[0]
    assert largest_relative_difference(one_device[1], weights(shop, "found.pt")) <= TOLERANCE


@pytest.mark.parametrize(
    "name", ["ddp", *(pytest.param(name, marks=pytest.mark.conformance) for name in OWN if name != "ddp")]
)
def test_what_their_own_launchers_give(shop: Workshop, name: str) -> None:
    module, launcher = OWN[name]
    need(module)
    words = (script(name), "own.pt")
    truth = line(torchrun(shop, 2, *words) if launcher == "torchrun" else its_own_launch(shop, *words))
    assert line(real(shop, script(name), "found.pt")) == truth
    assert largest_relative_difference(weights(shop, "own.pt"), weights(shop, "found.pt")) <= TOLERANCE


@pytest.mark.conformance
def test_accelerate_as_its_launcher_runs_it(shop: Workshop) -> None:
    need("accelerate")
    truth = line(torchrun(shop, 2, script("accelerate_ddp"), "own.pt"))
    assert line(real(shop, "--mode", "distributed", script("accelerate_ddp"), "found.pt")) == truth
    assert largest_relative_difference(weights(shop, "own.pt"), weights(shop, "found.pt")) <= TOLERANCE
