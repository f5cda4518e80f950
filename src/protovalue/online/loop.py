"""The online loop: S seeds step in lock-step, each with its own environment, replay and random numbers."""

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protovalue.config import names_where
from protovalue.data.format import End
from protovalue.data.record import Recorder
from protovalue.device import with_threads
from protovalue.envs.base import Env
from protovalue.envs.options import EnvOptions
from protovalue.errors import UserError
from protovalue.files import FolderLock, check_place, read_bytes, write_atomic
from protovalue.interrupt import stop_on_interrupt
from protovalue.online.agent import Agent
from protovalue.online.config import AgentConfig
from protovalue.online.draws import Draws
from protovalue.online.priorities import Priorities
from protovalue.online.replay import Layout, Replay, check_room, gibibytes
from protovalue.progress import ProgressBar
from protovalue.randomness import Purpose, environment_seed, generator_at
from protovalue.registry import env_again
from protovalue.runs import CONFIG, DONE, STATE, Checkpoint, Run, config_fields, read_run, restoring
from protovalue.schema import checked
from protovalue.schema import require as expect

WATCH_EVERY = 10  # updates between those whose numbers are logged; a loss that is not finite stays so
RECENT = 100  # training episodes of each seed that the summary's mean return is over


def epsilon_at(step: int, start: float, end: float, wait: int, steps: int) -> float:
    """Probability of a random action: `start` for `wait` steps, then linearly to `end` over `steps`, then `end`."""
    if step < wait:
        return start
    if step >= wait + steps:
        return end
    return start + (end - start) * (step - wait) / steps


def train(
    config: AgentConfig,
    recorded: Mapping[str, Any],
    env: Env,
    agent: Agent,
    recorder: Recorder | None = None,
    quiet: bool = False,
) -> Path:
    """Run the loop to its end in the folder `config.out`, or go on there; return the folder.

    Args:
        config: with every field set.
        recorded: what identifies the run, for its config.json.
        env: one environment per seed.
        agent: S agents, as they are before the first step.
        recorder: writes the first seed's transitions to a data set.
        quiet: no progress.
    """
    lock: FolderLock | None = None
    may_change = names_where(type(config), lambda role: role.may_change) - ({"steps"} if recorder else set())
    try:
        with Run.open(config.out, recorded, may_change) as run:
            _check_replay(config, run)
            if run.standing and not quiet:
                print(run.standing, file=sys.stderr)
            if recorder and (run.finished or run.resumed_from is None):
                recorder.check(finished=run.finished)
            if run.finished:
                return config.out
            room = Room.plan(config, agent, env, quiet)
            lock = _claim(config.replay_dir, config.out) if config.replay_dir else None
            loop = Loop(config, run, env, agent, room, recorder, quiet)
            run.begin()  # all that could be wrong with what was given was looked at
            if loop.step < loop.steps:
                loop.run()
            if recorder:
                recorder.close(complete=True)
            run.finish(loop.summary())
            if not config.keep_replay:
                _remove_replay(config)
    finally:
        env.close()
        if recorder:
            recorder.close(complete=False)
        if lock:
            lock.release()
    return config.out


@dataclass(frozen=True)
class Room:
    """What the replay holds and how much of it there is."""

    layout: Layout
    capacity: int
    slack: int

    @classmethod
    def plan(cls, config: AgentConfig, agent: Agent, env: Env, quiet: bool) -> Self:
        """Compute and print what the replay needs; refuse it where that is not there."""
        room = cls(_layout(agent, env, config), config.replay_size, 2 * config.checkpoint_every + 8)
        count = len(config.seed_list())
        slots = min(room.capacity + room.slack, config.steps) + 1
        size = room.layout.step_bytes
        what = f"{count} seed{'s' if count > 1 else ''} x {slots:,} steps x {size:,} bytes"
        needed = count * slots * size
        if not quiet:
            where = f"mapped to {config.replay_dir}" if config.replay_dir else "in memory"
            print(f"replay: {what} = {gibibytes(needed)} {where}", file=sys.stderr)
        if config.replay_dir is None:
            check_room(needed, None, what)
        if not (config.out / CONFIG).exists():
            check_room(needed, config.replay_dir or config.out, what)
        return room


@dataclass(frozen=True)
class _Saved:
    """What a checkpoint's state.json must hold; `env` is the environments' own."""

    seeds: int
    updates: int
    written: list[int]
    env: Any
    returns: list[float]
    finished: list[list[float]]
    recent: list[list[float]]
    summed: int
    episodes: int = 0

    def __post_init__(self) -> None:
        for name in ("updates", "summed", "episodes"):
            expect(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        for name in ("written", "returns", "finished", "recent"):
            found = getattr(self, name)
            expect(len(found) == self.seeds, name, f"{len(found)} entries", f"{self.seeds}, one for each seed")
        expect(min(self.written) >= 0, "written", min(self.written), "0 or more")


class Loop:
    """State of the online phase between two steps."""

    def __init__(
        self,
        config: AgentConfig,
        run: Run,
        env: Env,
        agent: Agent,
        room: Room,
        recorder: Recorder | None = None,
        quiet: bool = False,
    ) -> None:
        self.config, self._run, self._env, self._agent = config, run, env, agent
        self._recorder, self._quiet = recorder, quiet
        self.seeds = config.seed_list()
        self.steps, self.n_step = config.steps, config.n_step
        checkpoint = run.resumed_from
        if checkpoint:
            checked(_Saved, {**checkpoint.state, "seeds": len(self.seeds)}, checkpoint.path / STATE, extra=True)
        self.step = checkpoint.step if checkpoint else 0
        self._explore = Draws(self.seeds, Purpose.EXPLORE, 2)
        self._sample = Draws(self.seeds, Purpose.REPLAY, config.batch_size)
        count = len(self.seeds)
        self._returns = np.zeros(count)  # of the episodes under way
        self._finished: list[list[float]] = [[] for _ in self.seeds]  # returns since the last log line
        self._recent: list[list[float]] = [[] for _ in self.seeds]  # the last RECENT returns
        self._totals = torch.zeros(3, count, device=agent.theta.device)  # loss, value, gradient norm: sums since then
        self._summed = 0
        self._obs: NDArray[Any]  # to act on
        self._features: Tensor | None  # of these; None where updates change them
        if checkpoint and self.step >= self.steps:
            with restoring(checkpoint):
                self._restore_agent(checkpoint)
                if not (run.path / DONE).exists():  # killed after the last checkpoint: the data set is open
                    self._restore_recorder(checkpoint)
            return
        self._slack, self._folder = room.slack, config.replay_dir or run.path / REPLAY
        planned = min(room.capacity + room.slack, self.steps) + 1
        self._replay = Replay(count, room.capacity, room.layout, room.slack, config.replay_dir, planned)
        self._priorities = Priorities(self._replay, self.n_step) if config.prioritised else None
        if checkpoint:
            with restoring(checkpoint):
                self._restore(checkpoint)
        else:
            self._begin()

    def run(self) -> None:
        """Step, learn, log and save until the last step or an interrupt."""
        config = self.config
        log_every, save_every = config.log_every, config.checkpoint_every
        last_time, last_step = time.perf_counter(), self.step
        note = ""
        label, agents = with_threads(f"train {config.env}"), len(self.seeds)
        bar = ProgressBar(label, self.steps * agents, "steps", self.step * agents, self._quiet)
        with bar, stop_on_interrupt() as stop:
            while self.step < self.steps:
                self.act()
                if self.step >= config.replay_min and self.step % config.update_every == 0:
                    for _ in range(config.updates):
                        self.learn()
                if self.step % log_every == 0 or self.step == self.steps:
                    now = time.perf_counter()
                    metrics = self._metrics()
                    rate = (self.step - last_step) * len(self.seeds) / (now - last_time)
                    self._run.log(self.step, {**metrics, "agent_steps_per_second": rate})
                    last_time, last_step = now, self.step
                    note = f"return {metrics['return']:.2f}" if "return" in metrics else note
                due = self.step % save_every == 0 or self._replay.unsaved >= self._slack // 2 - 2
                stopping = stop.requested  # read once: what comes after the checkpoint must not end the run without one
                if due or self.step == self.steps or stopping:
                    self.save()
                bar.advance(len(self.seeds), note)
                if stopping and self.step < self.steps:
                    raise stop.error()

    def act(self) -> None:
        """Take one step in every environment and store it."""
        config, agent = self.config, self._agent
        seen = agent.see(self._obs) if self._features is None else self._features
        greedy = agent.greedy(seen)
        uniform = self._explore(self.step)
        epsilon = epsilon_at(
            self.step,
            config.epsilon_start,
            config.epsilon,
            config.replay_min,
            config.epsilon_steps,
        )
        anything = (uniform[:, 1] * agent.num_actions).astype(np.int64)
        actions = np.where(uniform[:, 0] < epsilon, anything, greedy)
        obs, rewards, terminated, truncated, info = self._env.step(actions)
        items, features = agent.items(obs)
        final = agent.items(info["final_obs"])[0] if info and truncated.any() else items
        learned = np.minimum(np.maximum(rewards, -1), 1) if config.clip_rewards else rewards  # quicker than np.clip
        self._replay.add(actions, learned, terminated, truncated, items, final)
        if self._priorities is not None:
            self._priorities.follow()
        self._features, self._obs = features, obs
        self.step += 1
        if self._recorder:
            self._record(self._recorder, int(actions[0]), float(rewards[0]), bool(terminated[0]), info)
        self._count(rewards, terminated | truncated)

    def learn(self) -> None:
        """Update every agent once, each on a batch of its own replay."""
        number = self._agent.updates
        weight = None
        if self._priorities is None:
            slot = self._replay.sample(self._sample(number), self.n_step, self._redraw)
        else:
            slot, weight = self._priorities.sample(self._sample(number))
        result = self._agent.learn(self._replay, slot, self.n_step, self.config.gamma, weight)
        if self._priorities is not None:
            self._priorities.update(slot, result["loss"].cpu().numpy())
        if number % WATCH_EVERY == 0:
            means = [result["loss"].mean(dim=1), result["value"].mean(dim=1), result["gradient_norm"]]
            self._totals += torch.stack(means)
            self._summed += 1

    def save(self) -> None:
        """Write a checkpoint; the replay first, whose older contents it leaves as they are."""
        self._check_finite()
        self._replay.save(self._folder)
        tensors: dict[str, NDArray[Any]] = {f"agent.{k}": v for k, v in self._agent.tensors().items()}
        tensors["totals"] = self._totals.cpu().numpy()
        tensors |= self._replay.sums()
        if self._priorities is not None:
            tensors |= self._priorities.state()
        state: dict[str, Any] = {
            "updates": self._agent.updates,
            "written": self._replay.written.tolist(),
            "env": self._env.save_state(),
            "returns": self._returns.tolist(),
            "finished": self._finished,
            "recent": self._recent,
            "summed": self._summed,
        }
        if self._recorder:
            state["episodes"], under_way = self._recorder.save()
            tensors |= {f"record.{name}": array for name, array in under_way.items()}
        self._run.save(self.step, tensors, state)

    def summary(self) -> dict[str, Any]:
        """Return the run's final numbers."""
        means = {str(seed): _mean(recent) for seed, recent in zip(self.seeds, self._recent, strict=True)}
        known = [mean for mean in means.values() if mean is not None]
        return {
            "steps": self.step,
            "updates": self._agent.updates,
            "training_return": _mean(known),
            "training_return_by_seed": means,
        }

    def _begin(self) -> None:
        """Start every environment."""
        self._obs, _ = self._env.reset(seed=self._environment_seeds())
        items, self._features = self._agent.items(self._obs)
        self._replay.begin(items)
        if self._recorder:
            self._recorder.open()
            self._recorder.begin(self.step, self._obs[0, -1])

    def _restore_agent(self, checkpoint: Checkpoint) -> None:
        self._agent.load(own_tensors(checkpoint.tensors), checkpoint.state["updates"])
        self._recent = checkpoint.state["recent"]

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Go back to a checkpoint; environments whose state could not be saved start a new episode."""
        state = checkpoint.state
        self._restore_agent(checkpoint)
        self._totals.copy_(torch.from_numpy(checkpoint.tensors["totals"]))
        self._summed, self._finished = state["summed"], state["finished"]
        self._replay.load(self._folder, state["written"], checkpoint.tensors)
        if self._priorities is not None:
            self._priorities.load(checkpoint.tensors)
        going_on = state["env"] is not None
        if going_on:
            try:
                self._obs = self._env.load_state(state["env"])
            except UserError as error:
                raise UserError(f"{checkpoint.path}: {error}") from error
            self._returns = np.array(state["returns"], float)
        else:
            self._obs, _ = self._env.reset(seed=self._environment_seeds(self.step))
            self._replay.cut()
        items, self._features = self._agent.items(self._obs)
        if not going_on:
            self._replay.begin(items)
        if self._priorities is not None:
            self._priorities.follow()  # a cut makes transitions complete
        self._restore_recorder(checkpoint)
        if self._recorder and not going_on:
            self._recorder.end(End.CUT)
            self._recorder.begin(self.step, self._obs[0, -1])

    def _restore_recorder(self, checkpoint: Checkpoint) -> None:
        if self._recorder:
            self._recorder.resume(checkpoint.state["episodes"], own_tensors(checkpoint.tensors, "record."))

    def _record(self, recorder: Recorder, action: int, reward: float, terminated: bool, info: dict[str, Any]) -> None:
        ended = "_final_obs" in info and bool(info["_final_obs"][0])
        recorder.add(action, reward, info["final_obs"][0, -1] if ended else self._obs[0, -1])
        if ended:
            recorder.end(End.TERMINATED if terminated else End.TRUNCATED)
            recorder.begin(self.step, self._obs[0, -1])

    def _count(self, rewards: NDArray[np.float32], ended: NDArray[np.bool_]) -> None:
        self._returns += rewards
        if ended.any():
            for s in np.flatnonzero(ended):
                self._finished[s].append(float(self._returns[s]))
                self._recent[s] = [*self._recent[s], float(self._returns[s])][-RECENT:]
                self._returns[s] = 0.0

    def _metrics(self) -> dict[str, float]:
        """Return what happened since the last call, and forget it."""
        self._check_finite()
        metrics: dict[str, float] = {}
        means = [(seed, np.mean(done)) for seed, done in zip(self.seeds, self._finished, strict=True) if done]
        if means:
            metrics["return"] = float(np.mean([mean for _, mean in means]))
            metrics |= {f"return/seed-{seed}": float(mean) for seed, mean in means}
        metrics["episodes"] = sum(len(done) for done in self._finished)
        if self._summed:
            names = ("loss", "value", "gradient_norm")
            metrics |= dict(zip(names, (self._totals.mean(dim=1) / self._summed).tolist(), strict=True))
        self._finished = [[] for _ in self.seeds]
        self._totals.zero_()
        self._summed = 0
        return metrics

    def _check_finite(self) -> None:
        if not bool(torch.isfinite(self._totals).all()):
            good = "its last checkpoint is good" if any((self._run.path / "checkpoints").iterdir()) else "no checkpoint"
            raise UserError(
                f"{self._run.path}: a loss before step {self.step} is not finite; {good}; try a smaller --learning-rate"
            )

    def _redraw(self, attempt: int, count: int) -> NDArray[np.float64]:
        """Return numbers (S, count) for those of an update that met no transition."""
        key = (Purpose.REDRAW, self._agent.updates, attempt + 1)
        return np.stack([generator_at(seed, *key).random(count) for seed in self.seeds])

    def _environment_seeds(self, *step: int) -> list[int]:
        """Return the seeds of environments that begin: at first, or anew at a step."""
        return [environment_seed(seed, Purpose.TRAINING, *step) for seed in self.seeds]


REPLAY, OWNER = "replay", "owner.txt"


def _remove_replay(config: AgentConfig) -> None:
    """Delete the replay's files."""
    folder = config.replay_dir or config.out / REPLAY
    for name in ("items.bin", "codes.bin", "rewards.bin", "ages.bin", OWNER):
        (folder / name).unlink(missing_ok=True)
    if config.replay_dir is None and folder.exists():
        folder.rmdir()


def _check_replay(config: AgentConfig, run: Run) -> None:
    """Refuse more steps for a finished run that has no replay any more."""
    folder, taken = config.replay_dir or config.out / REPLAY, run.resumed_from.step if run.resumed_from else 0
    if run.done is not None and config.steps > taken and not (folder / "items.bin").exists():
        raise UserError(
            f"--steps: found {config.steps:,}, expected {taken:,}: {config.out} was finished with so many, and its "
            "replay was deleted then; only a run that was finished with --keep-replay can go on"
        )


def _claim(folder: Path, run: Path) -> FolderLock:
    """Take a replay folder for a run: it holds one run's replay, for as long as that run is not done."""
    check_place(folder)
    folder.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(folder)
    owner, ours = folder / OWNER, str(run.absolute())
    found = read_bytes(owner).decode(errors="replace") if owner.exists() else ours
    if found != ours:
        lock.release()
        raise UserError(f"--replay-dir: {folder} holds the replay of {found[:300]}, expected an empty folder")
    write_atomic(owner, ours.encode())
    return lock


def _layout(agent: Agent, env: Env, config: AgentConfig) -> Layout:
    """Ask the agent what it stores: whole observations as features, or the newest frame of a stack."""
    shape = env.single_observation_space.shape
    blank = np.zeros((len(config.seed_list()), *shape), env.single_observation_space.dtype)
    item, _ = agent.items(blank)
    frames = item.shape[1:] == shape[1:] and item.dtype == blank.dtype
    half = item.dtype == np.float16 and config.clip_rewards  # clipped rewards are as small as features
    reward = np.float16 if half else np.float32
    return Layout(item.shape[1:], item.dtype, agent.num_actions, shape[0] if frames else None, reward)


def recorded_fields(config: AgentConfig, env: Env) -> dict[str, Any]:
    """Return a resolved config for config.json, with all options of its environment: defaults may change one day."""
    recorded = config_fields(replace(config, env=env.env_id, options=EnvOptions.of(env.options)))
    for name in ("env_options", "resize", "grey"):
        if not recorded["options"][name]:  # as runs have it that were made before there were such
            del recorded["options"][name]
    return recorded


def own_tensors(tensors: Mapping[str, NDArray[Any]], owner: str = "agent.") -> dict[str, NDArray[Any]]:
    """Return the tensors of a checkpoint that belong to the agent, or to another part of the loop."""
    return {name.removeprefix(owner): array for name, array in tensors.items() if name.startswith(owner)}


def print_summary(run: Path, env: str | None = None) -> None:
    """Say what there is after training in `env`, as the user wrote it."""
    done, again = read_run(run)["done"], env_again(env)
    if done["training_return"] is not None:
        print(f"{run}: mean return of the last training episodes {done['training_return']:.2f}")
    print(f"play with it: pvn evaluate {run}{again} --video episode.gif; curves: tensorboard --logdir {run}")


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None
