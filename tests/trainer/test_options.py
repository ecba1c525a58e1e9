"""Options of `train`."""

import pytest

from windlass.trainer.options import (
    ActiveDeadlineSeconds,
    Annotations,
    Labels,
    Name,
    TrainerArgs,
    TrainerCommand,
    read_sdk_options,
)
from windlass.trainer.sdk_errors import WrongArgument


def test_no_options():
    options = read_sdk_options(None)
    assert (options.name, options.command, dict(options.settings)) == ("", (), {})


def test_all_options():
    options = read_sdk_options(
        [
            Name("first"),
            Labels({"team": "a", "kueue.x-k8s.io/queue-name": "fast"}),
            Annotations({"note": "b"}),
            TrainerArgs(["--lr", "1"]),
            TrainerCommand(["torchrun", "main.py"]),
            ActiveDeadlineSeconds(60),
            Name("second"),
        ]
    )
    assert options.name == "second"
    assert options.command == ("torchrun", "main.py", "--lr", "1")
    assert options.settings == {
        "queue": "fast",
        "labels": {"team": "a"},
        "annotations": {"note": "b"},
        "timeout_s": 60,
    }


class Nane:
    """Option whose name is close to a known one."""


class RuntimePatch:
    """Option with the name that the SDK uses."""


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (Nane(), "did you mean Name?"),
        (RuntimePatch(), "TrainerClient(volumes="),
        (TrainerCommand("torchrun x"), "takes a list of strings"),
        (ActiveDeadlineSeconds(0), "a whole number of at least 1"),
    ],
)
def test_invalid_options_are_refused(option, message):
    with pytest.raises(WrongArgument) as caught:
        read_sdk_options([option])
    assert message in str(caught.value)
