"""Evaluating a graph on observations, node by node, in an order in which each has what it takes."""

from collections.abc import Callable
from typing import Any

import numpy as np

from protovalue.errors import UserError
from protovalue.released.graph import Found, Input, Model, Reference, Variable
from protovalue.released.operations import OPERATIONS, Flow, Limits, Value
from protovalue.released.tensors import TYPES, Array

NATIVE = "XlaCallModule"
_MOST_NODES = 20_000  # that are evaluated; a graph of the paper's network has 1,400


def evaluate(model: Model, features: Found, entry: Input, observations: Array, read: Callable[[str], Array]) -> Value:
    """Return the features that a graph gives for observations, and what it does to them.

    Args:
        model: the graph.
        features: the result that is wanted.
        entry: the graph's input.
        observations: what is fed to it, of its type.
        read: returns a variable by its name in the bundle.
    """
    limits = Limits(reducers=_reducers(model))
    values: dict[Any, Value] = {}
    for found, given in _order(model, features):
        where = _name(found)
        with model.file.damaged(where), np.errstate(all="ignore"):
            if isinstance(found, Input):
                value = Value(observations, Flow("input", "input", shape=observations.shape))
            elif isinstance(found, Variable):
                value = Value(read(found.key))
            else:
                value = _computed(model, found, [values[_key(one)] for one in given], limits, read)
        values[_key(found)] = value
    return values[_key(features)]


def _computed(
    model: Model, reference: Reference, given: list[Value], limits: Limits, read: Callable[[str], Array]
) -> Value:
    node = reference.scope.nodes[reference.name]
    if reference.index:
        raise ValueError(f"found result {reference.index} of {node.op}, expected the first")
    if node.op == "Const":
        array = node.tensor("value")
        if isinstance(array, list):
            raise ValueError("found texts, expected numbers")
        return Value(array)
    if node.op == "VarHandleOp":  # what reads it hands it on
        if reference.scope is not model.main or node.name not in model.keys:
            raise ValueError("found a variable that is not restored from a bundle")
        array, kind, shape = read(model.keys[node.name]), node.number("dtype"), node.shape("shape")
        if array.dtype != TYPES.get(kind) or array.shape != shape:
            raise ValueError(f"found a variable {array.shape} {array.dtype}, expected {shape} {TYPES.get(kind)}")
        return Value(array)
    if node.op == "ReadVariableOp":
        return given[0]
    inputs, operation = OPERATIONS[node.op]
    if (inputs and len(given) != inputs) or not given:
        raise ValueError(f"found {node.op} of {len(given)} inputs, expected {inputs or 'some'}")
    try:
        return operation(node, given, limits)
    except (ArithmeticError, LookupError, TypeError) as error:
        raise ValueError(f"{node.op}: {error}") from error


def _order(model: Model, features: Found) -> list[tuple[Found, list[Found]]]:
    """Return all that a result needs, each after what it takes, with what it takes."""
    order: list[tuple[Found, list[Found]]] = []
    state: dict[Any, bool] = {}  # whether it is in the order; else it is waiting for what it takes
    waiting: list[tuple[Found, list[Found] | None]] = [(features, None)]
    while waiting:
        found, given = waiting.pop()
        key = _key(found)
        if given is not None:
            state[key] = True
            order.append((found, given))
            continue
        if key in state:
            if not state[key]:
                raise UserError(f"{model.file.url}: damaged: found a cycle through {_name(found)}expected none")
            continue
        if len(state) == _MOST_NODES:
            raise UserError(f"{model.file.url}: found more than {_MOST_NODES:,} operations, expected fewer")
        state[key] = False
        needs: list[Found] = []
        if isinstance(found, Reference):
            node = found.scope.nodes[found.name]
            if node.op == NATIVE:
                raise UserError(
                    f"{model.file.url}: found the operation {NATIVE}: the network was exported by JAX's native "
                    "serialization, whose weights are not read here; expected a graph of TensorFlow's operations"
                )
            if node.op not in (*OPERATIONS, "Const", "VarHandleOp", "ReadVariableOp"):
                raise UserError(
                    f"{model.file.url}: found the operation {node.op[:80]} ({node.name[:120]}), which is not known; "
                    f"expected {', '.join(sorted(OPERATIONS))}"
                )
            with model.file.damaged(_name(found)):
                needs = model.given(found)
        waiting.append((found, needs))
        waiting += [(one, None) for one in needs if not state.get(_key(one))]
    return order


def _key(found: Found) -> Any:
    return (id(found.scope), found.name, found.index) if isinstance(found, Reference) else found


def _name(found: Found) -> str:
    return f"{found.name[:200]}: " if isinstance(found, Reference) else ""


def _reducers(model: Model) -> dict[str, str]:
    """Return the operation of every function that applies one to its two arguments."""
    found: dict[str, str] = {}
    for name, function in model.functions.items():
        computing = [node for node in function.nodes.values() if node.op not in ("Identity", "NoOp")]
        if len(function.arguments) == 2 and len(computing) == 1:
            (node,) = computing
            handed = {one.name: one.inputs[0] for one in function.nodes.values() if one.op == "Identity" and one.inputs}
            result = next(iter(function.returns.values()), "").split(":")[0]
            while result in handed:
                result = handed.pop(result).split(":")[0]
            if sorted(node.inputs) == sorted(function.arguments) and result == node.name:
                found[name] = node.op
    return found
