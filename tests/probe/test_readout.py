"""Readouts: the cut by episodes, what is left out, and scores of features of which the answer is known."""

import numpy as np
import pytest
import torch
from torch import nn

from protovalue.errors import UserError
from protovalue.evaluate.probe_file import FeatureScale, Variable
from protovalue.probe import readout
from protovalue.probe.labels import Labelled
from protovalue.probe.readout import Task

CLASSES = 4


def states(per_episode: int = 30, episodes: int = 10, same: int = 0) -> Labelled:
    """Random labels of 4 classes, a constant, and a rare one; the first `same` states of all episodes are alike."""
    rng = np.random.default_rng(0)
    count = per_episode * episodes
    labels = np.stack([rng.integers(CLASSES, size=count), np.zeros(count, int), rng.integers(2, size=count)], axis=1)
    observations = np.arange(count).reshape(count, 1, 1, 1)
    for episode in range(episodes):
        observations[episode * per_episode : episode * per_episode + same] = -1 - np.arange(same).reshape(-1, 1, 1, 1)
    variables = tuple(Variable(name, category) for name, category in (("a", "x"), ("b", "x"), ("c", "y")))
    return Labelled(observations, np.arange(count) // per_episode, labels, variables, 0.1)


def task() -> Task:
    return readout.make_task(states(), 0)


def test_episodes_are_not_shared_between_the_parts() -> None:
    made = readout.make_task(states(same=3), 0)
    own = [set(made.states.episodes[part].tolist()) for part in (made.train, made.stop, made.judge)]
    assert [len(one) for one in own] == [7, 1, 2]
    assert len(own[0] | own[1] | own[2]) == 10
    assert len(made.judge) == 2 * (30 - 3)  # without those that occur in training
    other = readout.make_task(states(), 1)
    assert set(other.train.tolist()) != set(task().train.tolist())


def test_what_tells_nothing_is_left_out() -> None:
    assert [variable.name for variable in task().variables] == ["a", "c"]
    assert task().counts == (4, 2)
    assert readout.entropy(np.array([0, 0, 1, 1])) == pytest.approx(np.log(2))
    assert readout.entropy(np.zeros(5, int)) == 0


def test_classes_that_training_does_not_have_are_never_right() -> None:
    some = states()
    last = readout.make_task(some, 0).judge[0]
    some.labels[last, 0] = 99
    made = readout.make_task(some, 0)
    assert made.classes[last, 0] == -1
    assert made.counts == (4, 2)
    assert readout.weighted_f1(np.array([-1, 0]), np.array([0, 0])) == pytest.approx(0.5 * 2 / 3)


def test_f1_by_hand() -> None:
    """Class 0: precision 1/2, recall 1, F1 2/3. Class 1, twice: 1/2, 1/2, 1/2. Class 2: never."""
    truth, answers = np.array([0, 1, 1, 2]), np.array([0, 0, 1, 1])
    assert readout.weighted_f1(truth, answers) == pytest.approx((1 * 2 / 3 + 2 * 1 / 2 + 1 * 0) / 4)


def test_the_area_by_hand() -> None:
    """Class 0 against the rest: of 2 x 2 pairs 3 are in order. Class 1, once: 2.5 of 3, one tied. -1 is of no class."""
    truth = np.array([0, 0, 1, -1])
    likelihoods = np.array([[0.6, 0.4, 0.0], [0.3, 0.7, 0.0], [0.2, 0.7, 0.1], [0.4, 0.2, 0.4]], np.float32)
    assert readout.area_under_curve(truth, likelihoods) == pytest.approx((3 / 4 + 2.5 / 3) / 2)
    assert readout.area_under_curve(np.array([1, 1]), likelihoods[:2]) == 0.5  # nothing to tell from


def test_a_rare_class_is_seen_by_the_area_alone() -> None:
    """One state of twenty is marked faintly: never so clearly that the rare answer is the likelier one."""
    rng = np.random.default_rng(0)
    rare = (rng.random(3000) < 0.05).astype(np.int64)
    features = rng.normal(size=(3000, 2)).astype(np.float32)
    features[:, 0] += 1.2 * rare
    few = Labelled(np.arange(3000).reshape(-1, 1, 1, 1), np.arange(3000) // 30, rare[:, None], (Variable("a", "x"),), 0)
    made = readout.make_task(few, 0)
    found, nothing = readout.read_frozen(made, torch.from_numpy(features), 0, 30, "whitened"), readout.majority(made)
    assert found.f1[0] == pytest.approx(nothing.f1[0], abs=0.03)
    assert found.area[0] == pytest.approx(0.80, abs=0.07)  # P(N(1.2, 1) > N(0, 1)) = Phi(1.2 / sqrt 2)


def test_the_best_epoch_is_kept_for_each_variable() -> None:
    """The first is best in the second epoch, the other in the first; what they share is of the last that was better."""
    weight, bias, common = (nn.Parameter(torch.zeros(size)) for size in ((2, 1, 1), (2, 1), (1,)))
    kept = readout._Best([weight, bias, common], 2)
    for number, scores in enumerate(([0.1, 0.9], [0.3, 0.2], [0.2, 0.3]), start=1):
        for parameter in (weight, bias, common):
            nn.init.constant_(parameter, number)
        kept.see(np.array(scores))
    kept.restore()
    assert (weight.flatten().tolist(), bias.flatten().tolist(), common.item()) == ([2, 1], [2, 1], 2)
    for _ in range(readout.PATIENCE - 2):
        assert kept.is_going
        kept.see(np.array([0.0, 0.0]))
    assert kept.is_going  # the first has one epoch left
    kept.see(np.array([0.0, 0.0]))
    assert not kept.is_going
    nn.init.constant_(weight, 7)
    kept.see(np.array([1.0, 1.0]))  # too late
    kept.restore()
    assert weight.flatten().tolist() == [2, 1]


def test_f1_stops_by_accuracy_and_the_area_by_likelihood(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zero features and weights: half of the states right at best, and the logarithm of a probability."""
    seen: dict[int, list[np.ndarray]] = {}
    monkeypatch.setattr(readout._Best, "see", lambda self, scores: seen.setdefault(id(self), []).append(scores))
    made = task()
    readout.read_frozen(made, torch.zeros(len(made.states.labels), 2), 0, 1, "whitened")
    (accuracy,), (likelihood,) = seen.values()
    assert all(0 <= one <= 1 for one in accuracy)
    np.testing.assert_allclose(likelihood, [np.log(1 / 4), np.log(1 / 2)], atol=0.05)


def test_unknown_classes_do_not_count_when_to_stop() -> None:
    logs = np.log(np.array([[[0.25, 0.75]], [[0.5, 0.5]], [[0.1, 0.9]]], np.float32))
    found = readout._mean_of_known(logs, np.array([[0], [1], [-1]]))
    assert found == pytest.approx([(np.log(0.25) + np.log(0.5)) / 2])
    assert readout._mean_of_known(logs, np.full((3, 1), -1)).tolist() == [0]


def test_the_majority_s_score() -> None:
    made = task()
    most = np.bincount(made.classes[made.train, 0]).argmax()
    share = float((made.classes[made.judge, 0] == most).mean())
    found = readout.majority(made)
    assert found.f1[0] == pytest.approx(share * 2 * share / (share + 1))
    assert found.area == [0.5, 0.5]


@pytest.mark.parametrize("scale", ["whitened", "rms"])
def test_features_that_hold_a_variable_are_read_and_others_are_not(scale: FeatureScale) -> None:
    """The first variable stands in the features one-hot, times 50: their scale is taken out. The other does not."""
    made = task()
    features = 50 * torch.eye(CLASSES)[torch.from_numpy(made.states.labels[:, 0])]
    found = readout.read_frozen(made, features, 0, 200, scale)
    assert (found.f1[0], found.area[0]) == (1, 1)
    assert found.f1[1] < 0.7
    assert found.area[1] < 0.7
    assert readout.read_frozen(made, 1e-3 * features, 0, 200, scale).f1[0] == 1
    nothing = readout.read_frozen(made, torch.zeros(len(features), 3), 0, 3, scale)
    assert nothing.f1 == pytest.approx(readout.majority(made).f1)
    assert nothing.area == [0.5, 0.5]  # all states are tied


def test_variables_do_not_disturb_each_other() -> None:
    """A variable's score is the same whether it is read alone or beside another."""
    made = task()
    rng = np.random.default_rng(1)
    features = torch.from_numpy(rng.normal(size=(len(made.states.labels), 6))).float()
    both = readout.read_frozen(made, features, 0, 40, "whitened")
    for j in range(2):
        alone = Task(
            made.states, made.variables[j : j + 1], made.classes[:, j : j + 1], made.counts[j : j + 1], made.train,
            made.stop, made.judge,
        )  # fmt: skip
        found = readout.read_frozen(alone, features, 0, 40, "whitened")
        assert (*found.f1, *found.area) == pytest.approx((both.f1[j], both.area[j]))


def test_it_stops_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Constant features tell nothing but shares, which are soon learned: far fewer epochs than a thousand."""
    made, seen = task(), []
    evaluated = readout._all

    def count(*arguments: object) -> object:
        seen.append(arguments)
        return evaluated(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(readout, "LEARNING_RATE", 1e-2)
    monkeypatch.setattr(readout, "_all", count)
    readout.read_frozen(made, torch.zeros(len(made.states.labels), 2), 0, 1_000, "whitened")
    assert readout.PATIENCE < len(seen) < 10 * readout.PATIENCE


def test_a_network_learns_end_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a linear map of the bits cannot tell, their exclusive or, a network with a hidden layer can."""
    rng = np.random.default_rng(0)
    bits = rng.integers(2, size=(600, 2))
    observations = np.concatenate([bits, rng.integers(9, size=(600, 6))], axis=1).astype(np.float32)
    either = (bits[:, 0] ^ bits[:, 1])[:, None]
    made = readout.make_task(Labelled(observations, np.arange(600) // 30, either, (Variable("xor", "x"),), 0.1), 0)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 64), nn.ReLU())
    frozen = readout.read_frozen(made, torch.from_numpy(observations), 0, 60, "whitened")
    monkeypatch.setattr(readout, "LEARNING_RATE", 1e-2)
    trained = readout.read_trained(made, network, 64, 0, 150)
    assert frozen.f1[0] < 0.7
    assert trained.f1[0] > 0.9
    assert frozen.area[0] < 0.7
    assert trained.area[0] > 0.9


def test_too_few_states_are_refused() -> None:
    with pytest.raises(UserError, match="--states: found 120 states of 4 episodes, expected states of 5 or more"):
        readout.make_task(states(episodes=4), 0)
    with pytest.raises(UserError, match="no state to judge by that does not occur in training"):
        readout.make_task(states(same=30), 0)
    constant = states()
    constant.labels[:] = 0
    with pytest.raises(UserError, match="no variable that changes enough"):
        readout.make_task(constant, 0)
