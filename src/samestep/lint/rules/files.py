"""SST0: the file itself."""

from __future__ import annotations

from samestep.lint.registry import Rule, prose, source

UNREADABLE = Rule(
    code="SST001",
    name="unreadable-source",
    severity="error",
    summary="The file, or a part of it, cannot be read as Python 3.",
    why=prose("""
        What cannot be parsed cannot be checked. A file of Python 2 is checked except for its statements that Python 3
        refuses (print, exec, raise with a comma); any other file with a syntax error, a null byte or a broken encoding
        is not checked at all. One finding says so, and where."""),
    wrong=source("""
        import torch

        print torch.cuda.device_count()
        """),
    right=source("""
        import torch

        print(torch.cuda.device_count())
        """),
    mend="Correct the syntax at the line named. For Python 2, `2to3` or `python -m lib2to3` of an old Python helps.",
)

UNKNOWN_CODE = Rule(
    code="SST002",
    name="unknown-ignored-code",
    severity="warning",
    summary="A `samestep: ignore[…]` comment names a rule that does not exist.",
    why="A comment with a mistyped code silences nothing, now or later, and looks as if it did.",
    wrong=source("""
        import torch

        model = torch.nn.Linear(2, 2)
        model.to("cuda:1")  # samestep: ignore[SST1O5]
        """),
    right=source("""
        import torch

        device = torch.device("cuda:1,3")  # samestep: ignore[SST102]
        """),
    mend="Write the code as the finding shows it, or delete the comment. `samestep lint --rules` lists all codes.",
)
RULES = [UNREADABLE, UNKNOWN_CODE]
