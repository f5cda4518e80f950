"""Makes tests/released/files: small real SavedModels of both kinds, with what their own framework computes.

It was run once, and needs what nothing else here does, in two environments of their own (Python 3.11):

    pip install jax==0.4.13 jaxlib==0.4.13 flax==0.6.11 tensorflow-cpu==2.13.1 'scipy<1.12' 'numpy<1.25'
    python tests/released/make_files.py then

    pip install tensorflow-cpu==2.21.0 jax==0.10.2 flax==0.12.8
    python tests/released/make_files.py now

The first are versions of the time at which the paper's encoders were released: jax2tf then wrote a graph of
TensorFlow's operations. The second are those of the day: TensorFlow's own way, and what JAX writes now, which is
refused. Weights are multiples of 1/32, so that the files stay small when they are compressed.
"""

import io
import os
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax.experimental import jax2tf

FILES = Path(__file__).parent / "files"
CHANNELS, FEATURES = (2, 4, 4), 64  # of width 1/8


class Stack(nn.Module):
    """A convolution, a max-pooling and two residual blocks."""

    channels: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        """Map (H, W, C) or a batch of them."""
        x = nn.Conv(self.channels, (3, 3))(x)
        x = nn.max_pool(x, (3, 3), (2, 2), "SAME")
        for _ in range(2):
            shortcut = x
            x = nn.Conv(self.channels, (3, 3))(nn.relu(x))
            x = nn.Conv(self.channels, (3, 3))(nn.relu(x)) + shortcut
        return x


class Impala(nn.Module):
    """An Impala-CNN of one observation (H, W, C) or of a batch of them."""

    scaled: bool = False

    @nn.compact
    def __call__(self, x: Any) -> Any:
        """Return the features."""
        x = x.astype(jnp.float32)
        if self.scaled:
            x = x / 255.0
        for channels in CHANNELS:
            x = Stack(channels)(x)
        x = nn.relu(x)
        x = x.reshape((*x.shape[:-3], -1))
        return nn.relu(nn.Dense(FEATURES)(x))


def frames(size: int, count: int = 3) -> Any:
    """Make observations (N, H, W, 4) of sparse noise and a rectangle each; no two frames of a stack are alike."""
    rng = np.random.default_rng(size)
    found = rng.integers(0, 256, (count, size, size, 4)) * (rng.random((count, size, size, 4)) < 0.03)
    for number in range(count):
        for one in range(4):
            at = size // 6 * (number + one)
            found[number, at // 2 : at // 2 + size // 5, at : at + size // 6, one] = 60 * one + 70
    return found.astype(np.uint8)


def draw(shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    """Draw weights, or a bias."""
    fan = int(np.prod(shape[:-1])) if len(shape) > 1 else 16
    return (np.round(rng.normal(0, 1.4 / np.sqrt(fan), shape) * 32) / 32).astype(np.float32)


def write(name: str, module: Any, call: Callable[..., Any], kind: Any, seen: Any, divide: float, features: Any) -> None:
    """Save a model with one function, or several; keep it with its features if TensorFlow loads them so."""
    spec = tf.TensorSpec([None, *seen.shape[1:]], kind, name="obs")
    module.__call__ = tf.function(call, autograph=False, input_signature=[spec])
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        tf.saved_model.save(module, str(folder))
        fed = seen if kind == tf.uint8 else seen.astype(np.float32) / np.float32(divide)
        loaded = tf.saved_model.load(str(folder))
        own = np.asarray(loaded(fed))
        assert features is None or np.allclose(own, features, atol=1e-4), name
        np.savez_compressed(folder / "expected.npz", frames=seen, features=own if features is None else features)
        FILES.mkdir(exist_ok=True)
        with tarfile.open(FILES / f"{name}.tar.xz", "w:xz", preset=9) as archive:
            for path in sorted(folder.rglob("*")):
                if path.is_file() and path.name != "fingerprint.pb":
                    entry, data = tarfile.TarInfo(str(path.relative_to(folder))), path.read_bytes()
                    entry.size = len(data)
                    archive.addfile(entry, io.BytesIO(data))
    print(name, (FILES / f"{name}.tar.xz").stat().st_size, "bytes")


def from_jax(name: str, size: int, variables: bool, scaled: bool, single: bool, **options: Any) -> None:
    """Export Flax's network: `single` is written for one observation and mapped over a batch, as Dopamine does."""
    model, rng = Impala(scaled), np.random.default_rng(1)
    shapes = jax.eval_shape(model.init, jax.random.PRNGKey(0), jnp.zeros((size, size, 4)))
    shapes = shapes.unfreeze() if hasattr(shapes, "unfreeze") else shapes
    params = jax.tree_util.tree_map(lambda leaf: draw(leaf.shape, rng), shapes)

    def apply(p: Any, x: Any) -> Any:
        return jax.vmap(lambda one: model.apply(p, one))(x) if single else model.apply(p, x)

    module, shape = tf.Module(), f"(b, {size}, {size}, 4)"
    if variables:
        module.params = tf.nest.map_structure(tf.Variable, params)
        both = jax2tf.convert(apply, polymorphic_shapes=[None, shape], with_gradient=False, **options)
        call = lambda obs: both(module.params, obs)  # noqa: E731
    else:
        call = jax2tf.convert(lambda x: apply(params, x), polymorphic_shapes=[shape], with_gradient=False, **options)
    seen, divide = frames(size), 1.0 if scaled else 255.0
    features = np.asarray(apply(params, seen.astype(np.float32) / np.float32(divide)))
    write(name, module, call, tf.float32, seen, divide, features)


def from_tensorflow(name: str, size: int, variables: bool) -> None:
    """Write the network in TensorFlow: of bytes, with variables and two functions, or with captured constants."""
    rng, module = np.random.default_rng(2), tf.Module()
    shapes, before = [], 4
    for channels in CHANNELS:
        shapes += [(3, 3, before, channels), *[(3, 3, channels, channels)] * 4]
        before = channels
    shapes.append((before * (-(-size // 8)) ** 2, FEATURES))
    make = tf.Variable if variables else tf.constant
    weights = [(make(draw(shape, rng)), make(draw(shape[-1:], rng))) for shape in shapes]
    if variables:
        module.weights = weights

    def call(obs: Any) -> Any:
        layers = iter(weights)

        def conv(x: Any) -> Any:
            kernel, bias = next(layers)
            return tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), bias)

        x = tf.cast(obs, tf.float32) * (1 / 255)
        for _ in CHANNELS:
            x = tf.nn.max_pool2d(conv(x), 3, 2, "SAME")
            for _ in range(2):
                x = x + conv(tf.nn.relu(conv(tf.nn.relu(x))))
        kernel, bias = next(layers)
        x = tf.reshape(tf.nn.relu(x), [-1, kernel.shape[0]])
        return tf.nn.relu(tf.matmul(x, kernel) + bias)

    if variables:  # a second function: then there is no serving signature
        spec = tf.TensorSpec([None, size, size, 4], tf.uint8)
        module.pixels = tf.function(lambda obs: call(obs)[:, :3], input_signature=[spec])
    write(name, module, call, tf.uint8, frames(size), 1.0, None)


def main() -> None:
    """Write those of one environment."""
    if sys.argv[1] == "then":
        from_jax("jax-constants", 84, variables=False, scaled=False, single=True)
        from_jax("jax-variables", 20, variables=True, scaled=True, single=True)
        from_jax("jax-plain", 20, variables=False, scaled=True, single=False, enable_xla=False)
    else:
        from_tensorflow("tf-variables", 20, variables=True)
        from_tensorflow("tf-captured", 20, variables=False)
        from_jax("jax-native", 20, variables=False, scaled=True, single=False)


if __name__ == "__main__":
    main()
