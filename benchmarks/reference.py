"""The pretraining step against the reference's arrangement in JAX: both in one sitting, on two threads and on one.

The JAX step is ours, written from the paper: an Impala network, ten random Nature-DQN networks with ten tasks each in
every step, the heads of all actions, Adam and a moving average, all in one compiled function. It starts from our own
class's parameters, and its first loss must be ours before anything is measured. Each side lives in a process of its
own; they take turns, and numbers are medians. Our side draws its batches meanwhile, JAX's has some ready.

JAX is no dependency of this package: `pip install jax` puts it beside.

With `--code DIR` the other side is the reference's own step, from a checkout of yours. Its parameters are its own, so
losses are not compared: they have to be finite. `stand_ins` says what it finds other than it expects.
"""

import importlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the benchmark that this one continues

import numpy as np
import torch

from benchmarks.pretrain import ACTIONS, BATCH, TASKS, Ours, in_turn, median, serve, workers
from protovalue.data.collect import collect
from protovalue.data.config import CollectConfig
from protovalue.errors import UserError
from protovalue.nets.layers import Conv, Dense
from protovalue.nets.memory import keep_freed_memory

try:
    import jax
    import jax.numpy as jnp
    from jax import lax
except ImportError:
    jax = None

THREADS = (2, 1)
BATCHES = 4  # that JAX's side has ready
TOLERANCE = 0.02  # of the first loss, relative: a state whose score is a threshold may be on either side of it in JAX
NEEDED = ("chex", "clu", "flax", "ml_collections", "optax", "orbax", "tqdm")  # by the reference's files
Tree = Any  # of JAX's arrays


def conv(layer: Tree, x: Any, stride: int = 1) -> Any:
    """Convolve (N, H, W, in) with a kernel (height, width, in, out), padding SAME."""
    kernel, bias = layer
    order = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=order) + bias


def dense(layer: Tree, x: Any) -> Any:
    """Map (N, in) to (N, out)."""
    kernel, bias = layer
    return x @ kernel + bias


def impala(network: Tree, pixels: Any) -> Any:
    """Map observations (N, 84, 84, 4), uint8, to features (N, 512)."""
    x = pixels.astype(jnp.float32) / 255
    for first, blocks in network["stacks"]:
        x = conv(first, x)
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        for one, other in blocks:
            x = x + conv(other, jax.nn.relu(conv(one, jax.nn.relu(x))))
    return jax.nn.relu(dense(network["dense"], jax.nn.relu(x).reshape(len(x), -1)))


def psi(network: Tree, pixels: Any) -> Any:
    """Return the values of all tasks and actions (N, m, A)."""
    kernel, bias = network["heads"]  # (k, m, A) and (m, A)
    return (impala(network, pixels) @ kernel.reshape(len(kernel), -1)).reshape(-1, *bias.shape) + bias


def scores(networks: Tree, pixels: Any) -> Any:
    """Return the outputs of random Nature-DQN networks (N, m), one network after another."""
    x, found = pixels.astype(jnp.float32) / 255, []
    for layers in networks:
        y = x
        for layer, stride in zip(layers["convs"], (4, 2, 1), strict=True):
            y = jax.nn.relu(conv(layer, y, stride))
        found.append(dense(layers["omega"], jax.nn.relu(dense(layers["dense"], y.reshape(len(y), -1)))))
    return jnp.concatenate(found, axis=1)


def loss_of(online: Tree, target: Tree, indicators: Tree, batch: Tree, gamma: float) -> Any:
    """Return the squared TD error, mean over tasks and transitions."""
    reward = (scores(indicators["networks"], batch["obs"]) >= indicators["thresholds"]).astype(jnp.float32)  # (B, m)
    going_on = 1 - batch["terminal"].astype(jnp.float32)[:, None]
    wanted = lax.stop_gradient(reward + gamma * going_on * psi(target, batch["next_obs"]).mean(axis=2))
    taken = jnp.take_along_axis(psi(online, batch["obs"]), batch["action"][:, None, None], axis=2)[:, :, 0]
    return jnp.square(wanted - taken).mean()


def make_step(gamma: float, rate: float, epsilon: float, ema: float) -> Callable[[Tree, Tree, Tree], tuple[Tree, Any]]:
    """Return the compiled step: state, indicators and batch to the next state and the loss before it.

    Args:
        gamma: discount factor.
        rate: Adam's learning rate.
        epsilon: Adam's epsilon.
        ema: share of the target network that is kept.
    """
    tree = jax.tree_util.tree_map

    def step(state: Tree, indicators: Tree, batch: Tree) -> tuple[Tree, Any]:
        loss, slope = jax.value_and_grad(loss_of)(state["online"], state["target"], indicators, batch, gamma)
        t = state["steps"] + 1
        first = tree(lambda m, g: 0.9 * m + 0.1 * g, state["first"], slope)
        second = tree(lambda v, g: 0.999 * v + 0.001 * g * g, state["second"], slope)

        def moved(p: Any, m: Any, v: Any) -> Any:
            return p - rate * (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.999**t)) + epsilon)

        online = tree(moved, state["online"], first, second)
        target = tree(lambda old, new: ema * old + (1 - ema) * new, state["target"], online)
        return {"online": online, "target": target, "first": first, "second": second, "steps": t}, loss

    compiled: Callable[[Tree, Tree, Tree], tuple[Tree, Any]] = jax.jit(step, donate_argnums=0)
    return compiled


# What our own class has drawn, as JAX's side keeps it.


def layer_of(module: Conv | Dense) -> Tree:
    """Return the kernel and the bias of a convolution or a dense layer."""
    weight, bias = (tensor.detach().numpy() for tensor in (module.weight, module.bias))
    return jnp.array(weight.transpose((2, 3, 1, 0) if weight.ndim == 4 else (1, 0))), jnp.array(bias)


def network_of(encoder: Any, heads: Any) -> Tree:
    """Return the parameters of an Impala encoder and its heads."""
    weight, bias = heads.weight.detach().numpy(), heads.bias.detach().numpy()  # (A, m, k) and (A, m)
    stacks = [
        (layer_of(stack.conv), [(layer_of(block.first), layer_of(block.second)) for block in stack.blocks])
        for stack in encoder.stacks
    ]
    every = jnp.array(weight.transpose(2, 1, 0)), jnp.array(bias.T)
    return {"stacks": stacks, "dense": layer_of(encoder.dense), "heads": every}


def state_of(method: Any) -> Tree:
    """Return the state of a proto-value network before its first step."""
    online = network_of(method.encoder, method.heads)
    zeros = jax.tree_util.tree_map(jnp.zeros_like, online)
    again = jax.tree_util.tree_map(jnp.array, (online, zeros))  # copies, because a step writes over what it is given
    return {"online": online, "target": again[0], "first": zeros, "second": again[1], "steps": jnp.zeros(())}


def indicators_of(indicator: Any) -> Tree:
    """Return the random networks and the thresholds of an indicator."""
    networks = [
        {
            "convs": [layer_of(layer) for layer in one.trunk.convs],
            "dense": layer_of(one.hidden),
            "omega": layer_of(one.omega),
        }
        for one in indicator.networks.modules_
    ]
    return {"networks": networks, "thresholds": jnp.array(indicator.thresholds.numpy())}


def batch_of(sample: Any) -> Tree:
    """Return a sample as JAX's side takes it: frames last."""
    frames = sample["frames"].numpy()
    return {
        "obs": jnp.array(np.moveaxis(frames[:, :-1], 1, -1)),
        "next_obs": jnp.array(np.moveaxis(frames[:, 1:], 1, -1)),
        "action": jnp.array(sample["action"].numpy()),
        "terminal": jnp.array(sample["terminal"].numpy()),
    }


def step_of(method: Any) -> Callable[[Tree, Tree, Tree], tuple[Tree, Any]]:
    """Return the compiled step with the settings of a proto-value network."""
    config = method.config
    return make_step(config.gamma, config.learning_rate, config.adam_epsilon, config.target_ema)


def both(work: Callable[[], Any]) -> dict[str, float]:
    """Take a step and say how long it took, on the wall and in processor time."""
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return {"seconds": time.perf_counter() - wall, "processor": time.process_time() - processor}


def jax_step(ours: Ours) -> Callable[[], dict[str, float]]:
    """Return a function that takes a step in JAX, from the parameters that our class has."""
    method = ours.method
    found = method.sets[0].found
    assert found is not None
    samples = [method.sample(number) for number in range(BATCHES)]
    with torch.no_grad():
        expected = float(method.loss(samples[0])[0])
    taken, step = 0, step_of(method)
    state, indicators, batches = state_of(method), indicators_of(found.indicator), [batch_of(one) for one in samples]

    def take() -> float:
        nonlocal state, taken
        state, loss = step(state, indicators, batches[taken % BATCHES])
        jax.block_until_ready(state)
        taken += 1
        return float(loss)

    first = take()
    if abs(first - expected) > TOLERANCE * expected:
        raise RuntimeError(f"the first loss in JAX is {first}, ours {expected}")
    return lambda: both(take)


# The reference's own code, from a checkout: its package `pvn` as it is.


def check_code(code: Path) -> None:
    """Refuse a folder without the reference's package, and an environment without what it imports."""
    if not (code / "pvn" / "offline.py").is_file():
        raise UserError(f"--code {code}: found no pvn/offline.py in it, expected a checkout of google-research")
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise UserError(
            f"--code: found no {', '.join(missing)} in this environment, expected what the reference imports: "
            "pip install chex clu tqdm"
        )


def stand_ins(actions: int) -> None:
    """Put modules of ours where the reference imports what its step does not need, or what is no more.

    TensorFlow, the data sets and what writes metrics are not needed. `maps` has left JAX: it said whether there is a
    mesh of devices, and here there is none. Flax returned frozen dictionaries then.
    """
    mesh = SimpleNamespace(physical_mesh=SimpleNamespace(empty=True))
    modules: dict[str, dict[str, Any]] = {
        "tensorflow": {},
        "clu.metric_writers": {},
        "clu.periodic_actions": {},
        "jax.experimental.maps": {"thread_resources": SimpleNamespace(env=mesh)},
        "pvn.datasets": {},
        "pvn.datasets.atari": {"create_dataset": None, "get_num_actions": lambda game: actions},
    }
    for name, contents in modules.items():
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(contents)
    importlib.import_module("flax").config.update("flax_return_frozendict", True)


def code_batch(sample: Any, actions: int) -> Tree:
    """Return a sample as the reference's data set gives it: the batch last in observations, actions as ones in rows."""
    frames = np.moveaxis(sample["frames"].numpy(), (0, 1), (3, 2))  # (84, 84, 5, B)
    return {
        "observation": np.ascontiguousarray(frames[:, :, :-1]),
        "action": np.eye(actions, dtype=np.uint8)[sample["action"].numpy()],
        "next_observation": np.ascontiguousarray(frames[:, :, 1:]),
        "terminal": sample["terminal"].numpy().astype(bool)[:, None],
    }


def code_step(code: Path, samples: Sequence[Any], tasks: int, actions: int) -> Callable[[], dict[str, float]]:
    """Return a function that takes a step of the reference's own code, as its training does after the warm-up.

    Args:
        code: the folder in which `pvn` lies.
        samples: the batches, which it takes in turn.
        tasks: how many; ten for each random network, as its settings say.
        actions: how many.
    """
    sys.path.append(str(code))  # behind all others, because that checkout has many folders
    stand_ins(actions)
    offline = importlib.import_module("pvn.offline")
    config = importlib.import_module("pvn.configs.dsm").get_config()
    config.encoder.width_multiplier, config.encoder.num_features = 1.0, 512
    config.offline.batch_size, config.offline.num_auxiliary_tasks = len(samples[0]["action"]), tasks
    config = importlib.import_module("ml_collections").FrozenConfigDict(config)  # a static argument must have a hash
    batches = [code_batch(sample, actions) for sample in samples]
    spec = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in batches[0].items()}
    keys = jax.random.split(jax.random.PRNGKey(0))
    state = offline.create_train_state_with_optional_mesh(spec, mesh=None, config=config, rng=keys[0])
    sets = offline.create_indicator_state_with_optional_mesh(spec, mesh=None, config=config, rng=keys[1])
    sets = sets.replace(step=config.offline.indicator.num_qr_warmup_steps + 1)  # both losses count from then on
    step = offline.jit_train_step_with_optional_mesh(spec, state, sets, mesh=None)
    metrics, of_sets = offline.TrainMetrics.empty(), offline.RNDIndicatorMetrics.empty()
    taken = 0

    def take() -> None:
        nonlocal state, sets, metrics, of_sets, taken
        state, sets, metrics, of_sets = step(state, sets, batches[taken % len(batches)], metrics, of_sets, config)
        jax.block_until_ready((state, sets))
        taken += 1

    def measured() -> dict[str, float]:
        found = both(take)
        loss = float(metrics.tde_loss.compute())  # the mean of all steps until now
        if not math.isfinite(loss):
            raise RuntimeError(f"the mean loss of {taken} steps of the reference's code is {loss}")
        return {**found, "loss": loss}

    return measured


def answer(variant: dict[str, Any]) -> None:
    """Be the process of one side: on the first cores alone, so that JAX, too, has no more threads."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: variant["threads"]])
    torch.set_num_threads(variant["threads"])
    if variant["keep"]:
        keep_freed_memory()
    ours = Ours(Path(variant["folder"]), tasks=variant["tasks"], batch=variant["batch"], normalize="no")
    if variant["kind"] == "code":
        samples = [ours.method.sample(number) for number in range(BATCHES)]
        serve(code_step(Path(variant["code"]), samples, variant["tasks"], ours.data.num_actions))
    serve(jax_step(ours) if variant["kind"] == "jax" else lambda: both(ours.step))


def measure(folder: Path, threads: int, rounds: int, sizes: dict[str, int], code: Path | None) -> dict[str, float]:
    """Compare the two sides on some threads."""
    theirs, side = ("JAX", {"kind": "jax"}) if code is None else ("its code", {"kind": "code", "code": str(code)})
    others = (theirs, f"{theirs}, our allocator")
    variants: dict[str, dict[str, Any]] = {
        "ours": {"kind": "ours", "keep": True},
        **{name: {**side, "keep": name != theirs} for name in others},
    }
    given = {name: {**variant, **sizes, "threads": threads} for name, variant in variants.items()}
    with workers(folder, given, __file__) as running:
        answers = in_turn(running, rounds)
    result: dict[str, float] = {}
    count = "1 thread" if threads == 1 else f"{threads} threads"
    for field, what in (("seconds", "s"), ("processor", "s of processor time")):
        for name in variants:
            result[f"{count}, {name} [{what}]"] = median(answers[name], field)
        for name in others:
            pairs = zip(answers[name], answers["ours"], strict=True)
            ratio = statistics.median(other[field] / own[field] for other, own in pairs)
            result[f"{count}, {name} / ours [{what}]"] = ratio
    if code is not None:
        for turn in (1, rounds):
            result[f"{count}, {theirs}, mean loss until round {turn}"] = answers[theirs][turn - 1]["loss"]
    return result


def main(quick: bool, *, code: Path | None = None) -> None:
    """Print the table and a line of JSON."""
    if code is not None:
        check_code(code)
    if jax is None:
        raise UserError("pvn bench reference: found no JAX in this environment, expected it: pip install jax")
    compare(3 if quick else 9, 1_024 if quick else 6_000, THREADS, {"tasks": TASKS, "batch": BATCH}, code)


def compare(rounds: int, steps: int, threads: Sequence[int], sizes: dict[str, int], code: Path | None = None) -> None:
    """Collect Pong, measure, and print."""
    result: dict[str, float] = {"load before": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "pong" / "data"
        data = collect(CollectConfig("atari/Pong", folder, steps=steps), quiet=True)
        assert data.num_actions == ACTIONS
        asked = json.dumps({"kind": "pass", "folder": str(folder), **sizes})
        subprocess.run([sys.executable, __file__, asked], check=True)  # the others find its result in the cache
        for count in threads:
            result |= measure(folder, count, rounds, sizes, code)
    result["load after"] = os.getloadavg()[0]
    for what, value in result.items():
        print(f"{what:<70}{value:>12,.3f}")
    versions = {"jax": jax.__version__, "torch": torch.__version__}
    if code is not None:
        versions["flax"] = importlib.import_module("flax").__version__
    print(json.dumps({"benchmark": "reference", "own code": code is not None, **versions, **result}))


if __name__ == "__main__":  # a process that `workers` or `compare` starts
    given = json.loads(sys.argv[1])
    if given["kind"] == "pass":
        Ours(Path(given["folder"]), tasks=given["tasks"], batch=given["batch"], normalize="no")
        sys.stdout.flush()
        os._exit(0)
    answer(given)
