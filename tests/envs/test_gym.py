"""Gymnasium environments of the user's: a file that registers one, frames that are checked, resized and made grey."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from protovalue.cli import main
from protovalue.data.dataset import open_dataset
from protovalue.encoder import load_encoder
from protovalue.envs.registry import import_module_of, make, same
from protovalue.errors import UserError
from protovalue.files import read_json
from protovalue.registry import env_file, env_name
from protovalue.runs import read_run

BOOL: Any = np.bool_  # Gymnasium takes any type of numpy, and says that it does not
FILE = """
import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

class Lamp(gymnasium.Env):
    observation_space, action_space = Box(0, 255, (4, 4), np.uint8), Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 3
        return np.zeros((4, 4), np.uint8), {}

    def step(self, action):
        self.left -= 1
        return np.full((4, 4), 200, np.uint8), float(action), self.left == 0, False, {}

gymnasium.register("Lamp-v0", Lamp)
"""
RAISES = FILE.replace("Lamp-v0", "Raises-v0").replace("self.left -= 1", "self.left -= self.nothing")


class Shown(gymnasium.Env[Any, np.int64]):
    """Shows one given thing, whatever it declares."""

    def __init__(self, space: Any, shown: Any) -> None:
        self.observation_space, self.action_space, self.shown = space, Discrete(2), shown

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self.shown, {}

    def step(self, action: np.int64) -> Any:
        return self.shown, 0.0, False, False, {}


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """Make the environments unknown again, as in another process."""
    before = set(gymnasium.registry)
    yield
    for name in set(gymnasium.registry) - before:
        del gymnasium.registry[name]


def shows(space: Any, shown: Any, **options: Any) -> Any:
    """Register an environment that shows one thing, and make it."""
    gymnasium.register("Shown-v0", lambda **_: Shown(space, shown))
    try:
        return make("gym/Shown-v0", 1, **options)
    finally:
        del gymnasium.registry["Shown-v0"]


def test_a_file_in_the_current_folder_registers_and_is_recorded_without_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "myenvs.py").write_text(FILE)
    for number, spec in enumerate(
        ("gym/myenvs.py:Lamp-v0", "gym/./myenvs.py:Lamp-v0", f"gym/{tmp_path}/myenvs.py:Lamp-v0")
    ):
        assert main(["collect", spec, "--steps", "8", "--num-envs", "1", "--out", f"data-{number}"]) == 0
        data = open_dataset(tmp_path / f"data-{number}")
        assert (data.env_id, data.num_transitions, data.env_options) == (
            "gym/Lamp-v0",
            8,
            {"stack": 1, "max_steps": None},
        )
        assert data.episode(0).frames[:, 0, 0].tolist() == [0, 200, 200, 200]
        assert same(spec, "gym/Lamp-v0")
    assert (env_name("gym/a.b/c.py:X/Y-v1"), env_file("gym/a.b/c.py:X/Y-v1")) == ("gym/X/Y-v1", "a.b/c.py")
    assert (env_name("gym/package.module:Y-v1"), env_file("gym/package.module:Y-v1")) == (
        "gym/package.module:Y-v1",
        None,
    )


def test_a_file_that_was_not_typed_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an encoder or a data set from somebody else, with a file of that name in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "myenvs.py").write_text("from pathlib import Path\nPath('ran').touch()\n" + FILE)
    with pytest.raises(UserError, match="environment 'gym/Lamp-v0'.* registers it is imported only if it is named on"):
        make("gym/./myenvs.py:Lamp-v0")
    assert not (tmp_path / "ran").exists()
    import_module_of("gym/./myenvs.py:Lamp-v0")
    assert (tmp_path / "ran").exists()


def test_agents_see_what_the_encoder_saw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    colours = FILE.replace("(4, 4)", "(12, 8, 3)")
    (tmp_path / "myenvs.py").write_text(colours)
    for words in (
        "collect gym/myenvs.py:Lamp-v0 --resize 5 --grey --steps 40 --num-envs 2 --out data",
        "pretrain --data data --out run --method random",
        "online --encoder run --env gym/myenvs.py:Lamp-v0 --steps 12 --replay-min 5 --out online",
        "evaluate online --env gym/myenvs.py:Lamp-v0 --episodes 1",
        "dqn --env gym/myenvs.py:Lamp-v0 --resize 6 --steps 12 --replay-min 5 --out dqn",
        "evaluate dqn --episodes 1",
    ):
        assert main(words.split()) == 0, words
    assert open_dataset(tmp_path / "data").frame_shape == (5, 5)
    assert load_encoder(tmp_path / "run").observation_shape == (1, 5, 5)
    options = {"stack": 1, "max_steps": None, "resize": 5, "grey": True}
    assert read_json(tmp_path / "online" / "evaluation.json")["env_options"] == options
    config = read_run(tmp_path / "dqn")["config"]
    assert (config["options"]["resize"], config["architecture"]) == (6, "minatar")
    assert read_run(tmp_path / "run")["config"]["architecture"] == "minatar"  # by the size of a frame


def test_what_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="--env: found no file nothing.py, expected a Python file"):
        import_module_of("gym/nothing.py:Lamp-v0")
    (tmp_path / "myenvs.py").write_text(FILE)
    with pytest.raises(
        UserError, match=r"No module named 'myenvs'; the file myenvs.py is named so: gym/myenvs.py:Lamp-v0"
    ):
        import_module_of("gym/myenvs:Lamp-v0")
    with pytest.raises(
        UserError, match=r"exist; a module .* imported only if .* a file of yours too \(--env gym/FILE.py:Lamp-v0\)"
    ):
        make("gym/Lamp-v0")
    (tmp_path / "broken.py").write_text("x = 1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        UserError, match=r"broken.py: this file of yours raised ZeroDivisionError: .* \(line 1: x = 1 / 0"
    ):
        import_module_of("gym/broken:Lamp-v0")


@pytest.mark.parametrize("spec", ["gym/raises.py:Raises-v0", "gym/raises:Raises-v0"])
def test_a_step_that_raises_shows_its_own_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], spec: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "raises.py").write_text(RAISES)
    assert main(["collect", spec, "--steps", "8", "--out", "data"]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert "raises.py: this file of yours raised AttributeError: 'Lamp' object has no attribute 'nothing'" in said
    assert said.endswith("(line 15: self.left -= self.nothing)")


RESET = "return np.zeros((4, 4), np.uint8), {}"
STEP = "return np.full((4, 4), 200, np.uint8), float(action), self.left == 0, False, {}"
RETURNS = "that returns observation, reward, terminated, truncated, info"


@pytest.mark.parametrize(
    ("given", "instead", "said"),
    [
        ("def step", "def stop", f"line 6: class Lamp of environment 'gym/Lamp-v0' has no step, expected step(self, "
         f"action) {RETURNS}"),
        ("def reset", "def restart", "line 6: class Lamp of environment 'gym/Lamp-v0' has no reset, expected "
         "reset(self, *, seed=None, options=None) that returns observation, info"),
        ("observation_space, action_space = ", "observation_space, actions = ", "line 6: class Lamp of environment "
         "'gym/Lamp-v0' has no action_space, expected a Discrete"),
        ("observation_space, action_space = ", "observations, action_space = ", "line 6: class Lamp of environment "
         "'gym/Lamp-v0' has no observation_space, expected a uint8 or bool Box"),
        ("self.left == 0, False, {}", "self.left == 0, {}", "line 14: step of environment 'gym/Lamp-v0': returned 4 "
         "values, expected 5: observation, reward, terminated, truncated, info; the done of old Gym is two: terminated "
         "and truncated"),
        (STEP, "return None", "line 14: step of environment 'gym/Lamp-v0': returned NoneType, expected 5: observation"),
        (RESET, "return np.zeros((4, 4), np.uint8)", "line 9: reset of environment 'gym/Lamp-v0': returned ndarray, "
         "expected 2: observation, info"),
        ("seed=None, options=None", "options=None", "line 9: reset of environment 'gym/Lamp-v0': TypeError: "
         "Lamp.reset() got an unexpected keyword argument 'seed'; expected reset(self, *, seed=None, options=None)"),
        ("def step(self, action)", "def step(self)", "line 14: step of environment 'gym/Lamp-v0': TypeError: "
         f"Lamp.step() takes 1 positional argument but 2 were given; expected step(self, action) {RETURNS}"),
    ],
)  # fmt: skip
def test_a_class_that_is_not_what_gymnasium_wants_is_told_by_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], given: str, instead: str,
    said: str,
) -> None:  # fmt: skip
    """And leaves no folder, so that the corrected file works."""
    monkeypatch.chdir(tmp_path)
    assert FILE.count(given) == 1
    (tmp_path / "myenvs.py").write_text(FILE.replace(given, instead))
    command = ["collect", "gym/myenvs.py:Lamp-v0", "--steps", "8", "--out", "data"]
    assert main(command) == 2
    assert capfd.readouterr().err.splitlines()[-1].startswith(f"pvn: myenvs.py: {said}")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("steps", [1, 2])
def test_a_step_that_fails_before_an_episode_is_over_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, there: bool
) -> None:
    """So that the corrected file works, also if it has other frames; a folder that was there stays, empty."""
    monkeypatch.chdir(tmp_path)
    if there:
        (tmp_path / "data").mkdir()
    (tmp_path / "myenvs.py").write_text(FILE.replace("self.left -= 1", f"self.left -= 1 / (self.left - {4 - steps})"))
    command = ["collect", "gym/myenvs.py:Lamp-v0", "--steps", "8", "--num-envs", "1", "--out", "data"]
    assert main(command) == 2
    assert [path.name for path in tmp_path.rglob("*")] == (["data"] if there else []) + ["myenvs.py"]
    del gymnasium.registry["Lamp-v0"]
    (tmp_path / "corrected.py").write_text(FILE.replace("4, 4", "5, 5"))
    assert main([word.replace("myenvs", "corrected") for word in command]) == 0
    assert open_dataset(tmp_path / "data").num_transitions == 8


def test_a_step_that_fails_later_keeps_what_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fails = FILE.replace("self.left = 3", "self.left, self.episodes = 3, getattr(self, 'episodes', 0) + 1")
    fails = fails.replace("self.left -= 1", "self.left -= 1 if self.episodes == 1 else 1 / 0")
    (tmp_path / "myenvs.py").write_text(fails)
    assert main(["collect", "gym/myenvs.py:Lamp-v0", "--steps", "9", "--num-envs", "1", "--out", "data"]) == 2
    assert open_dataset(tmp_path / "data").num_transitions == 3


def test_what_a_wrapper_makes_of_a_wrong_answer_is_told_by_the_line_of_the_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gymnasium's own wrapper for max_episode_steps takes the values apart before they come here."""
    monkeypatch.chdir(tmp_path)
    old = FILE.replace("self.left == 0, False, {}", "self.left == 0, {}")
    (tmp_path / "myenvs.py").write_text(old.replace('"Lamp-v0", Lamp', '"Lamp-v0", Lamp, max_episode_steps=9'))
    import_module_of("gym/myenvs.py:Lamp-v0")
    env = make("gym/Lamp-v0")
    env.reset(seed=0)
    with pytest.raises(UserError) as raised:
        env.step(np.zeros(1, int))
    assert str(raised.value) == (
        "myenvs.py: line 14: step of environment 'gym/Lamp-v0': ValueError: not enough values to unpack "
        f"(expected 5, got 4); expected step(self, action) {RETURNS}"
    )


def test_a_wrapper_of_the_users_is_told_by_its_own_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wrapper = """
class Old(gymnasium.Wrapper):
    def step(self, action):
        return self.env.step(action)[:4]

gymnasium.register("Old-v0", lambda: Old(Lamp()))
"""
    (tmp_path / "myenvs.py").write_text(FILE + wrapper)
    import_module_of("gym/myenvs.py:Old-v0")
    env = make("gym/Old-v0")
    env.reset(seed=0)
    with pytest.raises(UserError, match="^myenvs.py: line 21: step of environment 'gym/Old-v0': returned 4 values"):
        env.step(np.zeros(1, int))


def test_what_has_no_line_is_told_without() -> None:
    env = shows(Box(0, 255, (4, 4), np.uint8), None)
    env._games[0]._env.unwrapped.reset = int  # which takes no seed, and is made of no Python code
    with pytest.raises(UserError, match="^reset of environment 'gym/Shown-v0': TypeError: 'seed' is an invalid"):
        env.reset(seed=0)


@pytest.mark.parametrize(
    ("space", "shown", "message"),
    [
        (Box(0, 255, (4, 4), np.uint8), np.full((4, 4), 0.5), "found float64 of shape (4, 4), expected uint8 of shape"),
        (Box(0, 255, (4, 4), np.uint8), np.zeros((4, 4), np.int64), "found int64 of shape (4, 4), expected uint8 of"),
        (Box(0, 255, (4, 4), np.uint8), np.zeros((4, 5), np.uint8), "uint8 of shape (4, 5), expected uint8 of sh"),
        (Box(0, 255, (4, 4), np.uint8), [[0]], "found list, expected uint8 of shape (4, 4)"),
        (Box(0, 1, (4, 4), BOOL), np.zeros((4, 4), np.uint8), "found uint8 of shape (4, 4), expected bool of"),
        (Box(0, 9, (4, 4), np.uint8), np.full((4, 4), 10, np.uint8), "found 10 to 10, expected 0 to 9"),
        (Box(3, 255, (4, 4), np.uint8), np.eye(4, dtype=np.uint8) * 4, "found 0 to 4, expected 3 to 255"),
    ],
)  # fmt: skip
def test_an_observation_that_is_not_what_is_declared_is_refused(space: Any, shown: Any, message: str) -> None:
    env = shows(space, shown)
    said = "environment 'gym/Shown-v0': its observation is not what its observation_space declares: "
    with pytest.raises(UserError) as raised:
        env.reset(seed=0)
    assert str(raised.value).startswith(said)
    assert message in str(raised.value)
    env = shows(space, space.low)
    env.reset(seed=0)
    env._games[0]._env.unwrapped.shown = shown
    with pytest.raises(UserError, match="is not what its observation_space declares"):
        env.step(np.zeros(1, int))


def test_a_wrong_observation_is_one_line_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Gymnasium, too, says nothing beside it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "myenvs.py").write_text(FILE.replace("np.zeros((4, 4), np.uint8)", "np.zeros((4, 4)) + 0.5"))
    assert main(["collect", "gym/myenvs.py:Lamp-v0", "--steps", "8", "--out", "data"]) == 2
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert "found float64 of shape (4, 4), expected uint8 of shape (4, 4)" in said
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("reward", [float("nan"), float("-inf"), None, "much"])
def test_a_reward_that_is_no_number_is_refused(reward: Any) -> None:
    env = shows(Box(0, 255, (4, 4), np.uint8), np.zeros((4, 4), np.uint8))
    env.reset(seed=0)
    env.step(np.zeros(1, int))
    game = env._games[0]._env.unwrapped
    game.step = lambda _: (game.shown, reward, False, False, {})
    with pytest.raises(UserError) as raised:
        env.step(np.zeros(1, int))
    assert str(raised.value) == f"environment 'gym/Shown-v0': its reward: found {reward!r}, expected a finite number"


def test_grey_and_resized_frames_by_hand() -> None:
    red, white = np.zeros((4, 2, 3), np.uint8), np.full((4, 2, 3), 255, np.uint8)
    red[..., 0] = 200
    both = np.concatenate([red, white], axis=1)  # (4, 4, 3): left half red, right half white
    both[0, 0] = (0, 100, 10)
    space = Box(0, 255, (4, 4, 3), np.uint8)
    grey = shows(space, both, grey=True)
    assert grey.frame_shape == (4, 4)
    assert grey.options == {"stack": 1, "max_steps": None, "grey": True}
    # 0.299 * 200 = 59.8; 0.587 * 100 + 0.114 * 10 = 59.84; white stays white
    assert grey.reset(seed=0)[0][0, 0].tolist() == [[59, 59, 255, 255]] * 4
    small = shows(space, both, resize=2, stack=2)
    assert small.frame_shape == (2, 2, 3)
    # the mean of each quarter; in the first (3 * 200 + 0) / 4, 100 / 4 and 10 / 4, rounded
    assert small.reset(seed=0)[0][0, 1].tolist() == [[[150, 25, 3], [255, 255, 255]], [[200, 0, 0], [255, 255, 255]]]
    assert small.step(np.zeros(1, int))[0][0, :, 1, 0].tolist() == [[200, 0, 0], [200, 0, 0]]
    flat = shows(space, both, resize=1, grey=True)
    assert flat.reset(seed=0)[0].tolist() == [[[[157]]]]  # (59 + 255) / 2
    larger = shows(Box(0, 255, (1, 2), np.uint8), np.array([[7, 9]], np.uint8), resize=4)
    assert larger.reset(seed=0)[0][0, 0].tolist() == [[7, 7, 9, 9]] * 4


@pytest.mark.parametrize(
    ("space", "options", "message"),
    [
        (Box(0, 255, (4, 4), np.uint8), {"grey": True}, r"option grey: found uint8 frames of shape \(4, 4\), exp"),
        (Box(0, 1, (4, 4, 3), BOOL), {"grey": True}, "option grey: found bool frames"),
        (Box(0, 1, (4, 4), BOOL), {"resize": 2}, "option resize: found bool frames"),
        (Box(0, 255, (4,), np.uint8), {"resize": 2}, r"option resize: found uint8 frames of shape \(4,\), exp"),
        (Box(0, 255, (4, 4), np.uint8), {"resize": 0}, "option resize: found 0, expected 1 or more, at most 1,024"),
    ],
)  # fmt: skip
def test_frames_that_cannot_be_changed_so_are_refused(space: Any, options: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        shows(space, space.low, **options)
