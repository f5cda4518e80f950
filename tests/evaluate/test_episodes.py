"""Evaluation: exactly N complete episodes, all that were begun, whatever their lengths; results and video."""

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from PIL import Image
from PIL.GifImagePlugin import GifImageFile

from protovalue.cli import main
from protovalue.encoder import save_encoder
from protovalue.envs.base import Game, PythonEnv
from protovalue.envs.registry import make
from protovalue.errors import UserError
from protovalue.evaluate import episodes
from protovalue.evaluate.config import EvaluateConfig
from protovalue.evaluate.episodes import Quotas, evaluate_command, evaluate_run, load_agent, play, write_gif
from protovalue.files import read_json
from protovalue.nets.encoders import make_encoder
from protovalue.online import dqn, linear_dqn
from protovalue.online.agent import Agent
from protovalue.online.config import DqnConfig, OnlineConfig
from protovalue.online.dqn import train_dqn
from protovalue.online.draws import Draws
from protovalue.online.linear_dqn import train_online
from protovalue.randomness import Purpose
from protovalue.runs import read_run


class ShortAndLong(gymnasium.Env[np.ndarray, np.int64]):
    """Half of the episodes last 1 step and pay 0, half last 50 steps and pay 1 at the end: the mean return is 1/2."""

    def __init__(self) -> None:
        self.observation_space = Box(0, 255, (1, 3), np.uint8)
        self.action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.length, self.t = (1, 50)[int(self.np_random.integers(2))], 0
        return np.zeros((1, 3), np.uint8), {}

    def step(self, action: np.int64) -> Any:
        self.t += 1
        over = self.t == self.length
        return np.zeros((1, 3), np.uint8), float(over and self.length == 50), over, False, {}


@pytest.fixture(scope="module", autouse=True)
def _register_short_and_long() -> None:
    gymnasium.register("ShortAndLong-v0", ShortAndLong)  # type: ignore[arg-type]  # a class that takes no options


class Pressing(Agent):
    """An agent that prefers action 0, for any number of seeds."""

    num_actions = 2

    def __init__(self, seeds: int) -> None:
        super(Agent, self).__init__()  # it has nothing to learn
        self.seeds, self.seen, self.updates = seeds, list[int](), 1

    def see(self, obs: Any) -> torch.Tensor:
        self.seen.append(len(obs))
        return torch.zeros(self.seeds, len(obs) // self.seeds, 1)

    def values(self, features: Any) -> torch.Tensor:
        return torch.tensor([1.0, 0.0]).expand(*features.shape[:2], 2)


class Scripted(Game):
    """Game `number`, whose episodes last as long as the script says, the last one's length again and again.

    Frame t is [number, episode, t]; every step pays number + 1; it is cut where another game would end.
    """

    def __init__(self, number: int, lengths: list[int], cut: bool = False) -> None:
        self.number, self.lengths, self.cut = number, lengths, cut
        self.episode, self.t = -1, 0
        self.seeds, self.actions, self.closed = list[int | None](), list[int](), 0

    def frame(self) -> np.ndarray:
        return np.array([[self.number, self.episode, self.t % 256]], np.uint8)

    def reset(self, seed: Any) -> Any:
        self.seeds.append(seed)
        self.episode, self.t = self.episode + 1, 0
        return self.frame()

    def step(self, action: Any) -> tuple[Any, float, bool, bool]:
        self.actions.append(action)
        self.t += 1
        over = self.t == self.lengths[min(self.episode, len(self.lengths) - 1)]
        return self.frame(), self.number + 1.0, over and not self.cut, over and self.cut

    def close(self) -> None:
        self.closed += 1

    def save_state(self) -> None:
        return None

    def load_state(self, state: Any) -> None:
        raise NotImplementedError


def scripted(*games: Scripted, stack: int = 1, actions: int = 2) -> PythonEnv:
    return PythonEnv("gym/Scripted-v0", {"stack": stack, "max_steps": None}, games, (1, 3), np.uint8, actions)


def test_returns_and_lengths_are_those_of_the_script() -> None:
    """Two agents with two environments each and three episodes: two from the first of an agent's, one from the second.

    The first environment plays on, twice as often, while the second is in its long episode: that does not count.
    """
    games = Scripted(0, [1, 3, 1]), Scripted(1, [9]), Scripted(2, [2, 4], cut=True), Scripted(3, [1])
    first, second = play(scripted(*games), Pressing(2), [4, 9], 3, 0.0, quiet=True)
    assert (first.returns, first.lengths) == ([1.0, 3.0, 18.0], [1, 3, 9])
    assert (second.returns, second.lengths) == ([6.0, 12.0, 4.0], [2, 4, 1])
    assert len(games[0].actions) == 9  # no longer than the longest takes


def test_environments_have_seeds_of_their_own_once() -> None:
    """Seeds come from (agent's seed, 2 for evaluation, evaluation's seed, environment); later episodes have none."""
    games = [Scripted(number, [2]) for number in range(4)]
    play(scripted(*games), Pressing(2), [4, 9], 4, 0.0, seed=7, quiet=True)
    derived = [[int(np.random.SeedSequence([s, 2, 7, e]).generate_state(1)[0]) >> 1 for e in (0, 1)] for s in (4, 9)]
    assert [game.seeds[0] for game in games] == [*derived[0], *derived[1]]
    assert [game.seeds[1:] for game in games] == [[None] * 2] * 4


@pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.0])
def test_a_share_epsilon_of_the_actions_is_random(epsilon: float) -> None:
    """Any of five with the same probability, the agent's own, 0, too; every environment draws for itself."""
    games = [Scripted(number, [1000]) for number in range(4)]
    agent = Pressing(2)
    agent.num_actions = 5
    play(scripted(*games, actions=5), agent, [4, 9], 2, epsilon, quiet=True)
    actions = np.array([game.actions for game in games])
    assert actions.shape == (4, 1000)
    for action in range(1, 5):
        share = epsilon / 5
        found = (actions == action).mean(axis=1)  # of each environment
        assert np.abs(found - share).max() <= 4 * np.sqrt(share * (1 - share) / 1000)
    if epsilon:
        for i in range(4):
            for j in range(i):  # independent: both the same other action in 4 of 25 x epsilon^2
                both = ((actions[i] == actions[j]) & (actions[i] > 0)).mean()
                assert both == pytest.approx(4 / 25 * epsilon**2, abs=0.04)


def test_random_actions_are_a_function_of_seed_and_step() -> None:
    """At each step, one number of an environment says whether its action is random, another one which it is."""
    games = [Scripted(number, [300]) for number in range(4)]
    agent = Pressing(2)
    agent.num_actions = 5
    play(scripted(*games, actions=5), agent, [4, 9], 2, 0.7, seed=3, quiet=True)
    for s, seed in enumerate((4, 9)):
        own = int(np.random.SeedSequence([seed, 2, 3, 2]).generate_state(1)[0]) >> 1  # after the environments' 0 and 1
        numbers = Draws([own], Purpose.PLAY, 4)
        for t in range(300):  # more than one block of numbers
            whether, which = numbers(t).reshape(2, 2)
            expected = np.where(whether < 0.7, np.floor(5 * which), 0)
            assert [games[2 * s + e].actions[t] for e in (0, 1)] == expected.tolist()


def test_the_greedy_action_is_of_the_agent_whose_environment_it_is() -> None:
    class Choosing(Pressing):
        def see(self, obs: Any) -> torch.Tensor:
            return torch.from_numpy(obs[:, -1, 0, :1].astype(np.float32)).view(2, 2, 1)  # a game's number

        def values(self, features: Any) -> Any:
            wanted = features * torch.tensor([1.0, -1.0])[:, None, None] + torch.tensor([0.0, 4.0])[:, None, None]
            return -(torch.arange(5.0) - wanted).abs()  # the first agent wants its number, the second 4 minus it

    games = [Scripted(number, [3]) for number in range(4)]
    play(scripted(*games, actions=5), Choosing(2), [0, 1], 2, 0.0, quiet=True)
    assert [game.actions for game in games] == [[0] * 3, [1] * 3, [2] * 3, [1] * 3]


def test_the_film_is_of_the_first_agent_s_first_episode() -> None:
    """Its newest frames, the one that it ended in too, and nothing of the next episode or of other environments."""
    film: list[np.ndarray] = []
    play(scripted(Scripted(5, [3, 2]), Scripted(6, [9]), stack=2), Pressing(1), [0], 4, 0.0, film=film, quiet=True)
    assert [frame.tolist() for frame in film] == [[[5, 0, t]] for t in range(4)]


@pytest.mark.parametrize(("length", "last"), [(9, 4), (5, 4), (4, 4), (3, 3)])
def test_a_film_has_a_largest_length(monkeypatch: pytest.MonkeyPatch, length: int, last: int) -> None:
    monkeypatch.setattr(episodes, "VIDEO_FRAMES", 5)
    film: list[np.ndarray] = []
    play(scripted(Scripted(5, [length])), Pressing(1), [0], 2, 0.0, film=film, quiet=True)
    assert [frame.tolist() for frame in film] == [[[5, 0, t]] for t in range(last + 1)]


def test_films_are_cut_after_3000_frames() -> None:
    assert episodes.VIDEO_FRAMES == 3000


def test_progress_counts_the_episodes_of_all_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    play(scripted(*(Scripted(number, [2]) for number in range(4))), Pressing(2), [4, 9], 3, 0.0)
    assert "evaluate gym/Scripted-v0 (1 thread): 6/6 episodes" in capsys.readouterr().err


def naive(env: Any, episodes: int, seed: int) -> list[float]:
    """Count the first `episodes` that end, wherever: what must not be done."""
    returns, running = list[float](), np.zeros(env.num_envs)
    env.reset(seed=100 * seed)
    while len(returns) < episodes:
        _, rewards, terminated, truncated, _ = env.step(np.zeros(env.num_envs, int))
        running += rewards
        for e in np.flatnonzero(terminated | truncated):
            returns.append(running[e])
            running[e] = 0
    return returns[:episodes]


def test_long_episodes_count_as_much_as_short_ones() -> None:
    counted = [
        one
        for seed in range(20)
        for one in play(make("gym/ShortAndLong-v0", 40), Pressing(2), [0, 1], 20, 0.0, seed, quiet=True)
    ]
    returns = np.concatenate([one.returns for one in counted])
    lengths = np.concatenate([one.lengths for one in counted])
    assert len(returns) == 20 * 2 * 20
    assert set(lengths) == {1, 50}
    np.testing.assert_array_equal(returns, lengths == 50)
    assert abs(returns.mean() - 0.5) < 4 * 0.5 / len(returns) ** 0.5
    biased = np.concatenate([naive(make("gym/ShortAndLong-v0", 20), 20, seed) for seed in range(5)])
    assert biased.mean() < 0.3  # naive counting ends with the long ones still under way


def test_quotas_by_hand() -> None:
    quotas = Quotas(3, 2)  # the first environment plays two episodes, the second one
    assert quotas.quota.tolist() == [2, 1]
    no, both = np.array([False, False]), np.array([True, True])
    assert quotas.add(np.array([1.0, 10.0]), no) == 0
    assert quotas.add(np.array([2.0, 20.0]), both) == 2
    assert quotas.open.tolist() == [True, False]
    assert quotas.add(np.array([4.0, 40.0]), both) == 1  # the second environment's second episode does not count
    assert not quotas.open.any()
    played = quotas.played()
    assert (played.returns, played.lengths) == ([3.0, 4.0, 30.0], [2, 1, 2])


def test_a_seed_s_episodes_do_not_depend_on_the_others() -> None:
    both = play(make("gym/ShortAndLong-v0", 6), Pressing(2), [4, 9], 10, 0.3, quiet=True)
    alone = play(make("gym/ShortAndLong-v0", 3), Pressing(1), [9], 10, 0.3, quiet=True)
    assert both[1] == alone[0]
    assert play(make("gym/ShortAndLong-v0", 3), Pressing(1), [9], 10, 0.3, seed=1, quiet=True) != alone


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "r"
    config = OnlineConfig(
        env="minatar/breakout",
        out=out,
        encoder="random:minatar:1",
        seeds="0,5",
        steps=60,
        replay_min=20,
        replay_size=50,
    )
    return train_online(config, quiet=True)


def test_the_result_has_every_episode(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(f"evaluate {run} --episodes 7 --num-envs 3 --video {tmp_path}/v.gif --out {tmp_path}/e.json".split()) == 0
    )
    result = json.loads((tmp_path / "e.json").read_text())
    assert result["env"] == "minatar/breakout"
    assert (result["steps"], result["episodes"], result["epsilon"]) == (60, 7, 0.001)
    assert [row["seed"] for row in result["seeds"]] == [0, 5]
    for row in result["seeds"]:
        assert len(row["returns"]) == len(row["lengths"]) == 7
        assert row["mean_return"] == pytest.approx(np.mean(row["returns"]))
    assert result["mean_return"] == pytest.approx(np.mean([row["mean_return"] for row in result["seeds"]]))
    with Image.open(tmp_path / "v.gif") as film:
        assert isinstance(film, GifImageFile)
        assert film.size == (240, 240)
        assert 2 <= film.n_frames <= result["seeds"][0]["lengths"][0] + 1  # Pillow joins frames that are the same
    assert "every return" in capsys.readouterr().out


def test_the_same_evaluation_twice_is_the_same(run: Path, tmp_path: Path) -> None:
    first, second = (
        evaluate_run(EvaluateConfig(run, 4, out=tmp_path / f"{i}.json", num_envs=2), quiet=True) for i in range(2)
    )
    assert first == second


def test_the_agents_that_were_trained_play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loaded ones have the parameters that training ended with, not those it began with."""
    trained, prepared = dict[Any, Any](), []

    def catching(module: Any) -> Any:
        real = module.prepare

        def prepare(config: Any) -> tuple[Any, Any, Any]:
            env, agent, about = real(config)
            prepared.append(env)
            trained.setdefault(module, (agent, agent.theta.clone()))
            return env, agent, about

        return prepare

    for module in (linear_dqn, dqn):
        monkeypatch.setattr(module, "prepare", catching(module))
    small: dict[str, Any] = {"env": "minatar/breakout", "steps": 60, "replay_min": 20, "replay_size": 50}
    runs = {
        linear_dqn: train_online(
            OnlineConfig(**small, out=tmp_path / "online", encoder="random:minatar:1", seeds="3,8"), quiet=True
        ),
        dqn: train_dqn(DqnConfig(**small, out=tmp_path / "dqn", seeds="3,8"), quiet=True),
    }
    for module, run in runs.items():
        env, agent, seeds, steps = load_agent(run, 3)
        assert prepared[-1].closed  # the one that said what the agents need; they play in others
        assert not env.closed
        assert (seeds, steps, env.num_envs, env.env_id) == ((3, 8), 60, 6, "minatar/breakout")
        env.close()
        ended, began = trained[module]
        assert agent is not ended
        assert agent.updates == ended.updates > 0
        assert torch.equal(agent.theta, ended.theta)
        assert not torch.equal(agent.theta, began)


RESULT = {
    "env": "minatar/breakout", "steps": 12_000, "episodes": 2, "mean_return": 4.5,
    "seeds": [
        {"seed": 3, "mean_return": 2.0, "returns": [1.0, 3.0], "lengths": [5, 8]},
        {"seed": 11, "mean_return": 7.0, "returns": [7.0], "lengths": [40]},
    ],
}  # fmt: skip


def test_the_table_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Returns 1 and 3 have the standard error sqrt(2) / sqrt(2); a single one has none."""
    monkeypatch.setattr(episodes, "evaluate_run", lambda config: RESULT)
    evaluate_command(EvaluateConfig(tmp_path, 2, video=tmp_path / "v.gif"))
    assert capsys.readouterr().out.splitlines() == [
        "minatar/breakout, 12,000 agent steps, 2 episodes per seed",
        "  seed  mean return  standard error  mean length",
        "     3         2.00            1.00          6.5",
        "    11         7.00               -         40.0",
        "  mean         4.50",
        f"every return: {tmp_path}/evaluation.json",
        f"video: {tmp_path}/v.gif",
    ]
    evaluate_command(EvaluateConfig(tmp_path, 2, out=tmp_path / "e.json"))
    assert capsys.readouterr().out.splitlines()[-1] == f"every return: {tmp_path}/e.json"


@pytest.fixture
def made_agent(monkeypatch: pytest.MonkeyPatch) -> list[Scripted]:
    """Let `load_agent` give agents of seeds 4 and 9 in scripted environments, and return their games."""
    games: list[Scripted] = []

    def load(run: Any, num_envs: Any) -> Any:
        games.extend(Scripted(number, [number + 1]) for number in range(2 * num_envs))
        return scripted(*games), Pressing(2), (4, 9), 77

    monkeypatch.setattr(episodes, "load_agent", load)
    return games


def test_the_result_by_hand(tmp_path: Path, made_agent: list[Scripted]) -> None:
    """Game g lasts g + 1 steps, each of which pays g + 1."""
    out, video = tmp_path / "e.json", tmp_path / "films" / "v.gif"
    config = EvaluateConfig(tmp_path, 3, epsilon=0.0, num_envs=2, seed=5, out=out, video=video)
    result = evaluate_run(config, quiet=True)
    assert read_json(tmp_path / "e.json") == result
    assert result == {
        "format": "protovalue evaluation", "version": 1, "env": "gym/Scripted-v0",
        "env_options": {"stack": 1, "max_steps": None},
        "steps": 77, "episodes": 3, "epsilon": 0.0, "seed": 5, "mean_return": (2 + 34 / 3) / 2,
        "seeds": [
            {"seed": 4, "mean_return": 2.0, "returns": [1.0, 1.0, 4.0], "lengths": [1, 1, 2]},
            {"seed": 9, "mean_return": 34 / 3, "returns": [9.0, 9.0, 16.0], "lengths": [3, 3, 4]},
        ],
    }  # fmt: skip
    assert [game.closed for game in made_agent] == [1] * 4
    with Image.open(tmp_path / "films" / "v.gif") as film:
        assert isinstance(film, GifImageFile)
        assert film.n_frames == 2


def test_without_a_file_s_name_the_result_lies_in_the_run_and_there_is_no_film(
    tmp_path: Path, made_agent: list[Scripted], capsys: pytest.CaptureFixture[str]
) -> None:
    result = evaluate_run(EvaluateConfig(tmp_path, 2, epsilon=0.0))
    assert len(made_agent) == 4  # no more environments than episodes
    assert [path.name for path in tmp_path.iterdir()] == ["evaluation.json"]
    assert read_json(tmp_path / "evaluation.json")["seeds"] == result["seeds"]
    assert "4/4 episodes" in capsys.readouterr().err


def frames_of(path: Any) -> Any:
    with Image.open(path) as film:
        assert isinstance(film, GifImageFile)
        pictures, durations = [], []
        for i in range(film.n_frames):
            film.seek(i)
            pictures.append(np.asarray(film.convert("L")))
            durations.append(film.info["duration"])
        return pictures, durations, film.info["loop"]


def test_a_film_by_hand(tmp_path: Path) -> None:
    """Each of 2 x 3 pixels is a square of 80, without shades between them; the last picture stays for a second."""
    small = np.array([[0, 255, 0], [255, 0, 0]], np.uint8)
    write_gif(tmp_path / "deep" / "er" / "v.gif", [small, 255 - small, small])
    pictures, durations, loop = frames_of(tmp_path / "deep" / "er" / "v.gif")
    for found, frame in zip(pictures, [small, 255 - small, small], strict=True):
        np.testing.assert_array_equal(found, frame.repeat(80, axis=0).repeat(80, axis=1))
    assert (durations, loop) == ([60, 60, 1000], 0)
    write_gif(tmp_path / "v.gif", [small, 255 - small], size=6, milliseconds=100)
    pictures, durations, _ = frames_of(tmp_path / "v.gif")
    assert (pictures[0].shape, durations) == ((4, 6), [100, 1000])


def test_larger_pictures_are_smooth_and_flat_ones_a_line(tmp_path: Path) -> None:
    for width, shades in ((63, False), (64, True)):
        stripes = np.tile(np.arange(width) % 2 * 255, (32, 1)).astype(np.uint8)
        write_gif(tmp_path / "v.gif", [stripes])
        (found,), _, _ = frames_of(tmp_path / "v.gif")
        assert found.shape == (round(240 * 32 / width), 240)
        assert (len(np.unique(found)) > 2) == shades
    write_gif(tmp_path / "v.gif", [np.zeros((1, 600), np.uint8)])
    assert frames_of(tmp_path / "v.gif")[0][0].shape == (1, 240)


def test_episodes_are_cut_where_the_environment_says() -> None:
    env = make("gym/ShortAndLong-v0", 10, max_steps=20)
    (played,) = play(env, Pressing(1), [0], 30, 0.0, quiet=True)
    assert set(played.lengths) == {1, 20}


def test_another_encoder_in_the_place_of_the_one_trained_on_is_refused(tmp_path: Path) -> None:
    def encoder(seed: Any) -> None:
        made = make_encoder("minatar", (1, 10, 10, 4), 1, torch.Generator().manual_seed(seed))
        about = {"env_id": "minatar/breakout", "summary": {"feature_rms": 0.5}}
        save_encoder(tmp_path / "encoder", made, "minatar", 1, about, ["card"])

    encoder(0)
    config = OnlineConfig(
        env="minatar/breakout", out=tmp_path / "r", encoder=str(tmp_path / "encoder"), steps=12, replay_min=5
    )
    run = train_online(config, quiet=True)
    assert len(evaluate_run(EvaluateConfig(run, 1), quiet=True)["seeds"]) == 1
    encoder(1)
    with pytest.raises(UserError, match="is not the encoder that the run was trained on any more"):
        evaluate_run(EvaluateConfig(run, 1), quiet=True)


def test_a_folder_that_is_no_agent_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run"):
        evaluate_run(EvaluateConfig(tmp_path))


def test_a_run_of_another_kind_is_refused(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = read_run(run)
    monkeypatch.setattr(episodes, "read_run", lambda path: {**recorded, "config": {"kind": "pretrain"}})
    with pytest.raises(UserError, match="not a run of pvn online or pvn dqn"):
        evaluate_run(EvaluateConfig(tmp_path))
