"""What a thread loses, in words."""

from __future__ import annotations

import pytest

from langgraph_turncheckpoint._losses import Loss, Point


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (
            Loss(["a", "b", "c"], 0, Point(6, 5), Point(0, 1)),
            (
                "went back from step 6 to step 0, and lost 4 of its 5 messages; 3 checkpoints cannot be read any "
                "more: a to c"
            ),
        ),
        (
            Loss(["a"], 2, Point(6, 5), Point(5, 5)),
            (
                "went back from step 6 to step 5, where it holds 5 messages, as before; 1 checkpoint cannot be read "
                "any more: a; 2 checkpoints of subgraphs cannot be read any more"
            ),
        ),
        (
            Loss(["a"], 0, Point(6, 1), Point(5, 3)),
            (
                "went back from step 6 to step 5, where it holds 3 messages, instead of 1; 1 checkpoint cannot be "
                "read any more: a"
            ),
        ),
        (
            Loss(["a"], 0, Point(), Point(5, 1)),
            (
                "went back from its newest checkpoint, which is damaged itself, to step 5, where it holds 1 message; "
                "1 checkpoint cannot be read any more: a"
            ),
        ),
        (
            Loss(["a"], 0, Point(6), Point(5)),
            "went back from step 6 to step 5; 1 checkpoint cannot be read any more: a",
        ),
        (
            Loss(["a"], 0, Point(6, 3), Point()),
            "went back from step 6 to an earlier one; 1 checkpoint cannot be read any more: a",
        ),
        (
            Loss(["a", "b"]),
            "its newest checkpoint stays, and so do its messages; 2 older checkpoints cannot be read any more: a to b",
        ),
        (Loss([], 1), "1 checkpoint of subgraphs cannot be read any more"),
    ],
)
def test_a_loss_is_told_in_one_sentence(loss, told):
    assert loss.told(dry_run=False) == told
    would = loss.told(dry_run=True)
    assert "any more" not in would
    assert ("would go back" in would) == (loss.before is not None)
