"""The pretraining step against the reference's arrangement in JAX: both in one sitting, on two threads and on one.

The JAX step is ours, written from the paper: an Impala network, ten random Nature-DQN networks with ten tasks each in
every step, the heads of all actions, Adam and a moving average, all in one compiled function. It starts from our own
class's parameters, and its first loss must be ours before anything is measured. Each side lives in a process of its
own; they take turns, and numbers are medians. Our side draws its batches meanwhile, JAX's has some ready.

JAX is no dependency of this package: `pip install jax` puts it beside.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
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


def answer(variant: dict[str, Any]) -> None:
    """Be the process of one side: on the first cores alone, so that JAX, too, has no more threads."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: variant["threads"]])
    torch.set_num_threads(variant["threads"])
    if variant["keep"]:
        keep_freed_memory()
    ours = Ours(Path(variant["folder"]), tasks=variant["tasks"], batch=variant["batch"], normalize="no")
    serve(jax_step(ours) if variant["kind"] == "jax" else lambda: both(ours.step))


def measure(folder: Path, threads: int, rounds: int, sizes: dict[str, int]) -> dict[str, float]:
    """Compare the two sides on some threads."""
    variants = {
        "ours": {"kind": "ours", "keep": True},
        "JAX": {"kind": "jax", "keep": False},
        "JAX, our allocator": {"kind": "jax", "keep": True},
    }
    given = {name: {**variant, **sizes, "threads": threads} for name, variant in variants.items()}
    with workers(folder, given, __file__) as running:
        answers = in_turn(running, rounds)
    result: dict[str, float] = {}
    count = "1 thread" if threads == 1 else f"{threads} threads"
    for field, what in (("seconds", "s"), ("processor", "s of processor time")):
        for name in variants:
            result[f"{count}, {name} [{what}]"] = median(answers[name], field)
        for name in ("JAX", "JAX, our allocator"):
            pairs = zip(answers[name], answers["ours"], strict=True)
            ratio = statistics.median(theirs[field] / own[field] for theirs, own in pairs)
            result[f"{count}, {name} / ours [{what}]"] = ratio
    return result


def main(quick: bool) -> None:
    """Print the table and a line of JSON."""
    if jax is None:
        raise UserError("pvn bench reference: found no JAX in this environment, expected it: pip install jax")
    compare(3 if quick else 9, 1_024 if quick else 6_000, THREADS, {"tasks": TASKS, "batch": BATCH})


def compare(rounds: int, steps: int, threads: Sequence[int], sizes: dict[str, int]) -> None:
    """Collect Pong, measure, and print."""
    result: dict[str, float] = {"load before": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "pong" / "data"
        data = collect(CollectConfig("atari/Pong", folder, steps=steps), quiet=True)
        assert data.num_actions == ACTIONS
        asked = json.dumps({"kind": "pass", "folder": str(folder), **sizes})
        subprocess.run([sys.executable, __file__, asked], check=True)  # the others find its result in the cache
        for count in threads:
            result |= measure(folder, count, rounds, sizes)
    result["load after"] = os.getloadavg()[0]
    for what, value in result.items():
        print(f"{what:<70}{value:>12,.3f}")
    print(json.dumps({"benchmark": "reference", "jax": jax.__version__, "torch": torch.__version__, **result}))


if __name__ == "__main__":  # a process that `workers` or `compare` starts
    given = json.loads(sys.argv[1])
    if given["kind"] == "pass":
        Ours(Path(given["folder"]), tasks=given["tasks"], batch=given["batch"], normalize="no")
        sys.stdout.flush()
        os._exit(0)
    answer(given)
