"""Comments that silence, and the choice of rules."""

from __future__ import annotations

import pytest
from lint_cases import lint_text

from samestep.errors import SamestepError
from samestep.lint.registry import all_rules, choose

MISTAKE = "os.environ['CUDA_VISIBLE_DEVICES'] = 1"


def _codes(text: str) -> list[str]:
    return [finding.code for finding in lint_text("import os\n" + text)]


@pytest.mark.parametrize(
    "text",
    [
        f"{MISTAKE}  # samestep: ignore[SST103]",
        f"{MISTAKE}  # samestep: ignore",
        f"{MISTAKE}  # samestep:ignore[sst103, SST104] because",
        f"{MISTAKE}  # noqa  # samestep: ignore[SST103]",
        f"# samestep: ignore[SST103]\n{MISTAKE}",
        f"# samestep: ignore[SST103]\n\n# more\n{MISTAKE}",
        f"{MISTAKE}\n# samestep: ignore-file[SST103]",
        f"# samestep: ignore-file\n{MISTAKE}",
        "os.environ['CUDA_VISIBLE_DEVICES'] = [\n    1,\n    2,  # samestep: ignore[SST103]\n]",
    ],
)
def test_it_is_silent(text: str) -> None:
    assert _codes(text) == []


@pytest.mark.parametrize(
    "text",
    [
        f"{MISTAKE}  # samestep: ignore[SST104]",
        f"{MISTAKE}  # samestep: ignored",
        f"x = '# samestep: ignore'; {MISTAKE}",
        f"y = 1  # samestep: ignore\n{MISTAKE}",
        f"{MISTAKE}\n# samestep: ignore[SST103]",
        f"{MISTAKE}  # samestep: ignore[]",
    ],
)
def test_it_still_speaks(text: str) -> None:
    assert _codes(text) == ["SST103"]


def test_a_mistyped_code_is_named_where_it_stands() -> None:
    (found,) = lint_text("x = 1  # samestep: ignore[SST102, SST1O5]\n")
    assert (found.code, found.span.line, found.span.column) == ("SST002", 1, 35)


def test_shell_comments_silence_too() -> None:
    assert lint_text("CUDA_VISIBLE_DEVICES= 2 python a.py # samestep: ignore[SST601]\n", "shell") == []
    assert lint_text("# samestep: ignore[SST601]\nCUDA_VISIBLE_DEVICES= 2 \\\n python a.py\n", "shell") == []
    assert len(lint_text("echo '# samestep: ignore-file'\nCUDA_VISIBLE_DEVICES= 2 python a.py\n", "shell")) == 1


def _chosen(select: list[str], ignore: list[str]) -> set[str]:
    return {rule.code for rule in choose(select, ignore)}


def test_select_and_ignore() -> None:
    every, default = set(all_rules()), {code for code, rule in all_rules().items() if rule.default}
    assert _chosen([], []) == default and every - default == {"SST112"}
    assert _chosen(["ALL"], []) == every
    assert _chosen(["SST112"], []) == {"SST112"}
    assert _chosen(["SST1"], []) == {code for code in default if code.startswith("SST1")}
    assert _chosen(["devices", "SST601"], ["sst10"]) == {"SST110", "SST111", "SST113", "SST601"}
    assert _chosen([], ["SST"]) == set()
    for word in ("devices", "data", "loss", "metrics", "saving", "distributed", "shell", "files"):
        assert _chosen([word], [])


@pytest.mark.parametrize("item", ["SST9", "SSTX", "E501", "device", "S", "SST1000"])
def test_an_unknown_rule_is_refused_with_what_there_is(item: str) -> None:
    with pytest.raises(SamestepError, match="SST001 to SST609"):
        choose([item], [])
