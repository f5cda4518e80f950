"""What a study takes on a device that is not here: arithmetic, bytes, memory and disk by shapes, time by a profile."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from protovalue.data.config import CollectConfig, ImportAtariConfig
from protovalue.data.format import Manifest
from protovalue.data.splits import RUNS, choose_split
from protovalue.envs.registry import import_module_of, make
from protovalue.evaluate.config import EvaluateConfig
from protovalue.nets.cost import NetworkCost, network_cost
from protovalue.nets.encoders import make_encoder
from protovalue.online.config import AgentConfig, DqnConfig, OnlineConfig
from protovalue.pretrain.config import PretrainConfig
from protovalue.progress import duration
from protovalue.randomness import throwaway
from protovalue.registry import env_name
from protovalue.study.model import Study
from protovalue.study.plan import Plan, Stage
from protovalue.study.profile import Profile
from protovalue.study.schedule import makespan
from protovalue.study.state import is_done
from protovalue.study.work import acting_flops, step_work, task_pass, update_flops

ITERATIONS, ITERATION = 50, 1_000_000  # of the public Atari collections, and transitions of each
COMPRESSED = 0.1
"""Bytes on disk of a byte of frames: RL Unplugged's runs of 50 million frames of 84 x 84 are 22 to 50 GB."""
EPISODE = {"atari": 2_000, "minatar": 300}
"""Agent steps of an evaluation's episode, by family: how long they are depends on the agent."""
OTHER_EPISODE = 500
KEPT = 2  # checkpoints of a run
GIB, GB = 2**30, 1e9


@dataclass(frozen=True)
class Price:
    """What one stage takes."""

    flops: float = 0.0
    read: float = 0.0
    """Bytes of frames or features that go to the device."""
    memory: float = 0.0
    """Bytes on the device."""
    disk: float = 0.0
    """Bytes that stay."""
    meanwhile: float = 0.0
    """Bytes on the disk while it runs."""
    seconds: float = 0.0


class Pricer:
    """Prices the stages of a study on a device."""

    def __init__(self, study: Study, stages: Iterable[Stage], profile: Profile) -> None:
        self.study, self.profile = study, profile
        self.stages = {stage.id: stage for stage in stages}
        self.computed: set[object] = set()  # passes over data that some stage has computed
        self.guessed: set[str] = set()
        """What was assumed of some stage and is not true of all."""

    def price(self, stage: Stage) -> Price:
        """Price one stage; its needs do not count. Stages that share a pass over the data come in their order."""
        used = stage.used
        if isinstance(used, PretrainConfig):
            return self._pretrain(stage, used)
        if isinstance(used, AgentConfig):
            return self._agents(stage, used)
        if isinstance(used, EvaluateConfig):
            return self._evaluate(stage, used)
        transitions, frame = self._transitions(stage), math.prod(self._shape(stage)[1:])
        playing = transitions / self.profile.env_steps_per_second if isinstance(used, CollectConfig) else 0.0
        return Price(disk=COMPRESSED * transitions * frame, seconds=playing)

    def _pretrain(self, stage: Stage, used: PretrainConfig) -> Price:
        shape, cost = self._shape(stage), self._cost(stage, used)
        frame, model = math.prod(shape[1:]), 4 * cost.parameters
        if used.method == "random":
            return Price(disk=model, memory=model)
        step = step_work(used, cost, self._actions(stage), shape[0], self.profile.precision == "float32")
        if not step.known:
            self.guessed.add(f"a step of {Path(used.method).stem} is one pass with gradient and one without")
        half = 2 if self.profile.precision == "bfloat16" else 4
        trained = cost.parameters + step.head_parameters
        kept = used.batch_size * step.passes * cost.saved * half
        if used.recompute_activations:
            self.guessed.add("activations that are computed again count as kept")
        memory = 16 * trained + 4 * step.copies + kept  # parameters, gradients, two moments of Adam
        flops, read = used.steps * step.flops, used.steps * used.batch_size * step.frames * frame
        seconds = max(
            flops / self.profile.flops_per_second(self.profile.precision),
            read / (GB * self.profile.read_gb_per_second),
            used.steps * self.profile.step_ms / 1e3,
        )
        checkpoint = 12 * trained + 4 * step.copies
        before = self._before(stage, used, shape)
        disk = model + KEPT * checkpoint + before.disk
        return Price(
            flops + before.flops, read + before.read, max(memory, before.memory), disk, before.meanwhile,
            seconds + before.seconds,
        )  # fmt: skip

    def _before(self, stage: Stage, used: PretrainConfig, shape: tuple[int, ...]) -> Price:
        """Price the pass over the data that the tasks need, for the first stage that needs it."""
        work = task_pass(used, shape)
        if work is None:
            return Price()
        names = ("method", "tasks", "indicator", "proportion", "threshold", "normalize", "tasks_per_module",
                 "rni_network", "rni_output", "indicator_seed", "cumulant_seed", "seed")  # fmt: skip
        identity = (used.data, *(getattr(used, name, None) for name in names))
        if identity in self.computed:
            return Price(disk=work.networks)
        self.computed.add(identity)
        states = self._transitions(stage)
        flops, read = states * work.flops, states * math.prod(shape)
        seconds = max(flops / self.profile.flops_per_second("float32"), read / (GB * self.profile.read_gb_per_second))
        disk = states * work.kept + 2 * work.networks
        return Price(flops, read, work.networks, disk, states * work.meanwhile, seconds)

    def _agents(self, stage: Stage, used: AgentConfig) -> Price:
        cost, actions, shape = self._agent_cost(stage, used), self._actions(stage), self._shape(stage)
        seeds, profile = len(used.seed_list()), self.profile
        trains = isinstance(used, DqnConfig) or (isinstance(used, OnlineConfig) and used.finetune)
        if used.head != "dqn" or used.hidden:
            self.guessed.add("heads of agents are linear with one value for each action")
        times = max(0, (used.steps - used.first_update) // used.update_every + 1) * used.updates
        acting = acting_flops(cost, actions, seeds)
        update = update_flops(cost, actions, seeds, used.batch_size, bool(used.double), trains)
        rate = profile.flops_per_second("float32")
        least = profile.step_ms / 1e3
        seconds = used.steps * (max(acting / rate, least) + seeds / profile.env_steps_per_second)
        seconds += times * max(update / rate, least)
        half = isinstance(used, OnlineConfig) and used.replay_dtype == "float16"
        item = math.prod(shape[1:]) if trains else cost.features * (2 if half else 4)
        replay = seeds * min(used.replay_size, used.steps) * item
        own = seeds * (cost.parameters * trains + (cost.features + 1) * actions)
        read = used.steps * seeds * math.prod(shape)
        read += times * seeds * used.batch_size * 2 * (item * (shape[0] if trains else 1))
        memory = 20 * own + 4 * cost.parameters + (seeds * used.batch_size * cost.saved * 4 if trains else 0)
        data = COMPRESSED * used.steps * math.prod(shape[1:]) if "data" in stage.expect else 0.0
        flops = used.steps * acting + times * update
        return Price(flops, read, memory, KEPT * 16 * own + data, replay, seconds)

    def _evaluate(self, stage: Stage, used: EvaluateConfig) -> Price:
        run = self.stages[stage.needs[0]]
        assert isinstance(run.used, AgentConfig)
        seeds, profile = len(run.used.seed_list()), self.profile
        length = EPISODE.get(env_name(stage.env).partition("/")[0], OTHER_EPISODE)
        each = used.num_envs or min(10, used.episodes)
        cost, shape = self._agent_cost(run, run.used), self._shape(stage)
        calls = math.ceil(used.episodes / each) * length
        flops = calls * acting_flops(cost, self._actions(stage), seeds * each)
        least = profile.step_ms / 1e3 * calls
        playing = calls * seeds * each / profile.env_steps_per_second
        seconds = max(flops / profile.flops_per_second("float32"), least) + playing
        return Price(flops, calls * seeds * each * math.prod(shape), 4 * cost.parameters, 0, 0, seconds)

    def _transitions(self, stage: Stage) -> int:
        """Return the size of the data set that a stage makes, or learns from."""
        if "transitions" in stage.expect:
            return int(stage.expect["transitions"])
        used = stage.used
        if isinstance(used, ImportAtariConfig):
            split = choose_split(used.split, used.iterations)
            runs = len(split.runs or (used.runs.split(",") if used.runs else RUNS[:1]))
            count = ITERATIONS if split.iterations is None else len(split.iterations)
            self.guessed.add(
                f"imported Atari data have {ITERATION:,} transitions an iteration, {ITERATIONS} iterations a run"
            )
            return round(runs * count * ITERATION * used.proportion)
        if isinstance(used, PretrainConfig):
            if stage.needs:
                return self._transitions(self.stages[stage.needs[0]])
            return sum(Manifest.read(folder).transitions for folder in used.data)
        self.guessed.add("imports that do not say how much they bring are left out")
        return 0

    def _shape(self, stage: Stage) -> tuple[int, ...]:
        """Return the shape of an observation."""
        variant = self.study.environments[stage.env]
        return (int(variant.resolved["stack"]), *variant.frame)

    def _actions(self, stage: Stage) -> int:
        return _num_actions(stage.env)

    def _cost(self, stage: Stage, used: PretrainConfig | DqnConfig) -> NetworkCost:
        options = tuple(sorted((used.architecture_options or {}).items()))
        return _network(used.architecture, self._shape(stage), float(used.width), options)

    def _agent_cost(self, stage: Stage, used: AgentConfig) -> NetworkCost:
        if isinstance(used, DqnConfig):
            return self._cost(stage, used)
        pretrain = self.stages[stage.needs[0]]
        assert isinstance(pretrain.used, PretrainConfig)
        return self._cost(pretrain, pretrain.used)


@cache
def _network(
    architecture: str, shape: tuple[int, ...], width: float, options: tuple[tuple[str, object], ...]
) -> NetworkCost:
    return network_cost(make_encoder(architecture, shape, width, throwaway(), dict(options)).to("meta"))


@cache
def _num_actions(env: str) -> int:
    import_module_of(env)
    made = make(env)
    made.close()
    return made.num_actions


def print_price(study: Study, laid_out: Plan, root: Path, profile: Profile, devices: int, commands: bool) -> None:
    """Print what every stage takes on a device, and what all of them do."""
    pricer = Pricer(study, laid_out.stages, profile)
    prices = {stage.id: pricer.price(stage) for stage in laid_out.stages}
    print(f"{study.title}: on {profile.name}")
    wide = max(len(stage.id) for stage in laid_out.stages)
    head = f"{'PFLOP':>11} {'read GB':>9} {'GiB':>6} {'disk GB':>8} {'hours':>8}"
    print(f"{'':<{wide}} {head}")
    for stage in laid_out.stages:
        one = prices[stage.id]
        mark = " done" if is_done(stage, root) else ""
        print(f"{stage.id:<{wide}} {_row(one)}{mark}")
        if commands:
            print(f"    {' '.join(stage.command)}")
    kinds = dict.fromkeys(stage.kind for stage in laid_out.stages)
    print(f"\n{'':<14} {'stages':>7} {head} {'price':>10}")
    for kind in (*kinds, "all"):
        own = [prices[stage.id] for stage in laid_out.stages if kind in (stage.kind, "all")]
        total = _sum(own)
        cost = total.seconds / 3600 * profile.price_per_hour
        print(f"{kind:<14} {len(own):>7} {_row(total)} {cost:>10,.0f}")
    left = [stage for stage in laid_out.stages if not is_done(stage, root)]
    _print_totals(left, prices, profile, devices)
    _print_assumptions(profile, pricer)


def _sum(prices: Iterable[Price]) -> Price:
    """Add up; memory is that of the largest."""
    own = list(prices)
    return Price(
        sum(one.flops for one in own), sum(one.read for one in own), max((one.memory for one in own), default=0.0),
        sum(one.disk for one in own), max((one.meanwhile for one in own), default=0.0),
        sum(one.seconds for one in own),
    )  # fmt: skip


def _row(one: Price) -> str:
    numbers = f"{one.flops / 1e15:>11,.2f} {one.read / GB:>9,.1f} {one.memory / GIB:>6,.1f} {one.disk / GB:>8,.1f}"
    return f"{numbers} {one.seconds / 3600:>8,.2f}"


def _print_totals(left: list[Stage], prices: Mapping[str, Price], profile: Profile, devices: int) -> None:
    total = _sum(prices[stage.id] for stage in left)
    hours = total.seconds / 3600
    price = f"{hours * profile.price_per_hour:,.0f} at {profile.price_per_hour:g} an hour"
    wall = makespan(left, {stage.id: prices[stage.id].seconds for stage in left}, devices)
    print(f"left: {len(left)} stages, {hours:,.1f} device-hours, {price}")
    print(f"wall time on {devices} device{'s' * (devices != 1)}: {duration(wall)}")
    waiting = devices * total.meanwhile / GB
    print(f"disk: {total.disk / GB:,.0f} GB stay, up to {waiting:,.0f} GB more while stages run")
    if total.memory > profile.memory_gib * GIB:
        need = f"{total.memory / GIB:,.1f} GiB of the device's {profile.memory_gib:g}"
        print(f"NOT ENOUGH MEMORY: the largest stage takes {need}; recompute_activations or a smaller batch takes less")


def _print_assumptions(profile: Profile, pricer: Pricer) -> None:
    peak = profile.peak_tflops
    half = f"{peak.bfloat16:g} TFLOP/s in bfloat16, " if peak.bfloat16 is not None else ""
    lines = [
        f"the device does {half}{peak.float32:g} TFLOP/s in float32 at best, and {profile.achieved:.0%} of that here",
        f"pretraining is in {profile.precision}; indicators, agents and evaluations are in float32",
        f"a step takes {profile.step_ms:g} ms or more; the host brings {profile.read_gb_per_second:g} GB/s of frames",
        f"a core plays {profile.env_steps_per_second:,.0f} steps/s; agents of a stage share one, and wait for it",
        "memory is what parameters, Adam and activations take, without what PyTorch itself and its libraries do",
        f"frames take {COMPRESSED:.0%} of their size on disk; a run keeps {KEPT} checkpoints; downloads take no time",
        f"an episode of an evaluation has {_episodes()} agent steps",
        *sorted(pricer.guessed),
    ]
    print("assumed:")
    for line in lines:
        print(f"  {line}")


def _episodes() -> str:
    known = ", ".join(f"{steps:,} ({family})" for family, steps in EPISODE.items())
    return f"{known} or {OTHER_EPISODE:,} (others)"
