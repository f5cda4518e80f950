"""A SavedModel's graph: its nodes and functions, the function that maps observations to features, its variables."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from protovalue.data import protobuf
from protovalue.data.protobuf import message, varints
from protovalue.errors import UserError
from protovalue.released.files import Mapped
from protovalue.released.tensors import read_shape, read_tensor, signed

CALLS = ("PartitionedCall", "StatefulPartitionedCall")
THROUGH = ("Identity", "PreventGradient", "StopGradient", "Snapshot", "EnsureShape")
"""Operations whose result is what they are given."""
SIGNATURE = "serving_default"
_MOST_NODES = 200_000  # of all functions; a graph of the paper's network has 1,400
_MOST_FIELDS = 1_000_000  # of a message
_MOST_CALLS = 64  # within each other


@dataclass(frozen=True)
class Node:
    """An operation; its attributes are read when they are asked for."""

    name: str
    op: str
    inputs: tuple[str, ...]
    attributes: Mapping[str, memoryview]

    def number(self, name: str, default: int = 0) -> int:
        """Return a whole number, a type or a truth value."""
        found = _last(self.attributes.get(name), (3, 5, 6))
        return signed(found) if isinstance(found, int) else default

    def text(self, name: str) -> bytes:
        """Return a text; of a function, its name."""
        data = self.attributes.get(name)
        function = _last(data, (10,))
        found = _last(message(function), (1,)) if function is not None else _last(data, (2,))
        return b"" if found is None else bytes(message(found))

    def numbers(self, name: str) -> tuple[int, ...]:
        """Return a list of whole numbers."""
        found = _last(self.attributes.get(name), (1,))
        return integers(message(found), 3) if found is not None else ()

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a shape."""
        found = _last(self.attributes.get(name), (7,))
        return read_shape(message(found)) if found is not None else ()

    def tensor(self, name: str) -> Any:
        """Return a tensor: an array or a list of texts."""
        found = _last(self.attributes.get(name), (8,))
        if found is None:
            raise ValueError(f"{self.name[:200]}: found no tensor, expected one")
        return read_tensor(message(found))


@dataclass(frozen=True)
class Function:
    """A function of the graph."""

    name: str
    arguments: tuple[str, ...]
    kinds: tuple[int, ...]
    """Types of the arguments."""
    shapes: tuple[tuple[int, ...], ...]
    """Shapes of the arguments, where they are told."""
    outputs: tuple[str, ...]
    nodes: Mapping[str, Node]
    returns: Mapping[str, str]


@dataclass(eq=False)
class Scope:
    """The main graph, or one call of a function."""

    nodes: Mapping[str, Node]
    arguments: dict[str, "Found"] = field(default_factory=dict)
    depth: int = 0
    calls: dict[str, "Scope"] = field(default_factory=dict)


@dataclass(frozen=True)
class Variable:
    """A variable that a function of the graph is given, by its name in the bundle."""

    key: str


@dataclass(frozen=True)
class Input:
    """The observations."""

    kind: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Reference:
    """A result of a node in a scope."""

    scope: Scope
    name: str
    index: int = 0


Found = Reference | Variable | Input


@dataclass
class Model:
    """What a SavedModel computes, and where its parts are."""

    file: Mapped
    main: Scope
    functions: Mapping[str, Function]
    signatures: Mapping[str, memoryview]
    restore: str
    """Name of the node that assigns all variables."""
    objects: memoryview
    """The message about its objects."""

    def resolve(self, reference: Found) -> Found:
        """Follow arguments and calls to the node that computes something, or to an input."""
        for _ in range(_MOST_NODES):
            if not isinstance(reference, Reference):
                return reference
            scope, name = reference.scope, reference.name
            if name in scope.arguments:
                reference = scope.arguments[name]
                continue
            if name not in scope.nodes:
                raise ValueError(f"found no node {name[:200]!r}, expected one, for another takes its result")
            node = scope.nodes[name]
            if node.op not in CALLS:
                return reference
            function = self.function(node.text("f").decode())
            if reference.index >= len(function.outputs):
                raise ValueError(f"found result {reference.index} of {name[:200]!r}, which has {len(function.outputs)}")
            result = function.returns.get(function.outputs[reference.index], "")
            reference = parsed(self.called(scope, node, function), result)
        raise ValueError(f"found a cycle through {name[:200]!r}, expected none")

    def function(self, name: str) -> Function:
        """Return a function by its name."""
        if name not in self.functions:
            raise ValueError(f"found no function {name[:200]!r}, expected one, for a node calls it")
        return self.functions[name]

    def called(self, scope: Scope, node: Node, function: Function) -> Scope:
        """Return the scope of a call."""
        if node.name not in scope.calls:
            if scope.depth == _MOST_CALLS:
                raise ValueError(
                    f"found more than {_MOST_CALLS} functions that call each other, at {node.name[:200]!r}"
                )
            given = [parsed(scope, text) for text in node.inputs if not text.startswith("^")]
            if len(given) != len(function.arguments):
                found = f"{len(given)} arguments of {node.name[:200]!r}"
                raise ValueError(f"found {found}, expected {len(function.arguments)}")
            arguments: dict[str, Found] = dict(zip(function.arguments, given, strict=True))
            scope.calls[node.name] = Scope(function.nodes, arguments, scope.depth + 1)
        return scope.calls[node.name]

    def given(self, reference: Reference) -> list[Found]:
        """Return what the node of a resolved reference takes."""
        node = reference.scope.nodes[reference.name]
        return [self.resolve(parsed(reference.scope, text)) for text in node.inputs if not text.startswith("^")]

    @cached_property
    def keys(self) -> dict[str, str]:
        """Return the names in the bundle of the main graph's variables, by the nodes that stand for them.

        The graph says how it is restored: which result of RestoreV2 is assigned to which variable.
        """
        found: dict[str, str] = {}
        node = self.main.nodes.get(self.restore)
        scope = self.main
        if node is not None and node.op in CALLS:
            scope = self.called(self.main, node, self.function(node.text("f").decode()))
        for one in scope.nodes.values():
            if one.op not in ("AssignVariableOp", "Assign") or len(one.inputs) < 2:
                continue
            handle, value = (self.through(self.resolve(parsed(scope, text))) for text in one.inputs[:2])
            if not isinstance(handle, Reference) or not isinstance(value, Reference):
                continue
            restored = value.scope.nodes[value.name]
            if handle.scope is not self.main or restored.op != "RestoreV2" or len(restored.inputs) < 2:
                continue
            names = self.resolve(parsed(value.scope, restored.inputs[1]))
            texts = names.scope.nodes[names.name].tensor("value") if isinstance(names, Reference) else []
            if not isinstance(texts, list) or value.index >= len(texts):
                raise ValueError(f"found no name for what {one.name[:200]!r} restores")
            found[handle.name] = texts[value.index].decode()
        return found

    def through(self, found: Found) -> Found:
        """Follow what only hands on."""
        for _ in range(_MOST_NODES):
            if not isinstance(found, Reference):
                return found
            node = found.scope.nodes[found.name]
            if node.op not in THROUGH or not node.inputs:
                return found
            found = self.resolve(parsed(found.scope, node.inputs[0]))
        raise ValueError("found a cycle, expected none")

    def entry(self, checkpoint: Mapping[int, str]) -> tuple[Input, Found]:
        """Return the observations and the features of the function that a user of the model calls.

        By its serving signature; where it has none, by the objects that it says it has. `checkpoint` are the names of
        variables in the bundle by the numbers of these objects.
        """
        if SIGNATURE in self.signatures:
            return self._signed(self.signatures[SIGNATURE])
        return self._called_object(checkpoint)

    def _signed(self, data: memoryview) -> tuple[Input, Found]:
        inputs, outputs = (_map(data, number) for number in (1, 2))
        if len(inputs) != 1 or len(outputs) != 1:
            raise ValueError(
                f"found a signature of {len(inputs)} inputs and {len(outputs)} outputs, expected one of each"
            )
        ((_, given),), ((_, result),) = inputs.items(), outputs.items()
        name, kind, shape = _info(given)
        entry = Input(kind, shape)
        self.main.arguments[parsed(self.main, name).name] = entry
        return entry, self.resolve(parsed(self.main, _info(result)[0]))

    def _called_object(self, checkpoint: Mapping[int, str]) -> tuple[Input, Found]:
        objects = [message(value) for number, value in fields(self.objects) if number == 1]
        functions = dict(_children(objects[0])) if objects else {}
        functions = {name: at for name, at in functions.items() if _object(objects, at, 6) is not None}
        chosen = functions.get("__call__", next(iter(functions.values())) if len(functions) == 1 else None)
        if chosen is None:
            found = ", ".join(sorted(functions)[:5]) or "none"
            raise ValueError(f"found no signature {SIGNATURE} and functions {found}, expected one, or __call__")
        concrete = [
            bytes(message(value)).decode()
            for number, value in fields(_object(objects, chosen, 6) or memoryview(b""))
            if number == 1
        ]
        bound = _map(self.objects, 2)
        if not concrete or concrete[0] not in bound:
            raise ValueError("found a function that was never traced, expected one with a graph")
        function = self.function(concrete[0])
        numbers = integers(bound[concrete[0]], 2)
        if len(function.arguments) - len(numbers) != 1 or len(function.outputs) != 1:
            counted = f"{len(function.arguments) - len(numbers)} inputs and {len(function.outputs)} outputs"
            raise ValueError(f"found a function of {counted}, expected one of each")
        entry = Input(function.kinds[0], function.shapes[0] if function.shapes else ())
        given: list[Found] = [entry, *(self._bound(objects, number, checkpoint) for number in numbers)]
        scope = Scope(function.nodes, dict(zip(function.arguments, given, strict=True)), 1)
        return entry, self.resolve(parsed(scope, function.returns.get(function.outputs[0], "")))

    def _bound(self, objects: Sequence[memoryview], number: int, checkpoint: Mapping[int, str]) -> Found:
        """Return what a function captured: a constant of the main graph, or a variable."""
        constant = _object(objects, number, 9)
        if constant is not None:
            found = _last(constant, (1,))
            return parsed(self.main, bytes(message(found)).decode() if found is not None else "")
        if _object(objects, number, 7) is None or number not in checkpoint:
            raise ValueError(f"found that object {number} is captured, expected a constant or a variable of the bundle")
        return Variable(checkpoint[number])

    def variables_of_objects(self, data: memoryview) -> dict[int, str]:
        """Return the names in a bundle of the objects that are variables, by the numbers that the graph gives them.

        `data` is the bundle's own message about its objects; both have the same names from the first object on.
        """
        ours = [message(value) for number, value in fields(self.objects) if number == 1]
        theirs = [message(value) for number, value in fields(data) if number == 1]
        found: dict[int, str] = {}
        waiting, seen = [(0, 0)], {0}
        while waiting and ours and theirs:
            own, other = waiting.pop()
            if not (0 <= own < len(ours) and 0 <= other < len(theirs)):
                raise ValueError(f"found object {own} of {len(ours)}")
            for number, value in fields(theirs[other]):
                if number == 2:
                    parts = {
                        field: bytes(message(text)).decode()
                        for field, text in fields(message(value))
                        if field in (1, 3)
                    }
                    if parts.get(1) == "VARIABLE_VALUE":
                        found[own] = parts.get(3, "")
            children = dict(_children(theirs[other]))
            for name, at in _children(ours[own]):
                if name in children and at not in seen:
                    seen.add(at)
                    waiting.append((at, children[name]))
        return found


def read_model(file: Mapped) -> Model:
    """Read saved_model.pb; what is damaged is a UserError, and so is what is no SavedModel."""
    with file.damaged():
        graphs = [message(value) for number, value in fields(file.data) if number == 2]
        if not graphs:
            raise UserError(f"{file.url}: not a SavedModel: found no graph in it")
        parts = dict[int, memoryview]()
        signatures = _map(graphs[0], 5)
        for number, value in fields(graphs[0]):
            if number in (2, 3, 7):
                parts[number] = message(value)
        nothing = memoryview(b"")
        count = 0
        nodes: dict[str, Node] = {}
        functions: dict[str, Function] = {}
        for number, value in fields(parts.get(2, nothing)):
            if number == 1:
                node = _node(message(value))
                nodes[node.name] = node
                count += 1
            elif number == 2:
                for field_number, one in fields(message(value)):
                    if field_number == 1:
                        function = _function(message(one), _MOST_NODES - count)
                        functions[function.name] = function
                        count += len(function.nodes) + 1
            if count > _MOST_NODES:
                raise ValueError(f"found more than {_MOST_NODES:,} nodes")
        restore = _last(parts.get(3, nothing), (3,))
        name = bytes(message(restore)).decode() if restore is not None else ""
        return Model(file, Scope(nodes), functions, signatures, name.split(":")[0], parts.get(7, nothing))


def parsed(scope: Scope, text: str) -> Reference:
    """Read how one node names another's result: `node`, `node:1`, or in a function `node:output:1`."""
    parts = text.split(":")
    index = parts[-1] if len(parts) > 1 else "0"
    if not text or len(parts) > 3 or not (index.isascii() and index.isdigit() and len(index) < 6):
        raise ValueError(f"found {text[:200]!r} in place of the name of a result")
    return Reference(scope, parts[0], int(index))


def fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Go over the fields of a message, up to a number of them."""
    for count, one in enumerate(protobuf.fields(data)):
        if count == _MOST_FIELDS:
            raise ValueError(f"found more than {_MOST_FIELDS:,} fields in a message")
        yield one


def _last(data: memoryview | None, numbers: tuple[int, ...]) -> int | memoryview | None:
    """Return the last value of some fields, as protobuf takes it."""
    found = None
    for number, value in fields(data) if data is not None else ():
        if number in numbers:
            found = value
    return found


def integers(data: memoryview, number: int) -> tuple[int, ...]:
    """Return the whole numbers of a repeated field, packed or not."""
    found: list[int] = []
    for one, value in fields(data):
        if one == number:
            found += [value] if isinstance(value, int) else varints(value)
        if len(found) > _MOST_NODES:
            raise ValueError(f"found more than {_MOST_NODES:,} numbers")
    return tuple(signed(value) for value in found)


def _map(data: memoryview, number: int) -> dict[str, memoryview]:
    """Return a map of messages by name."""
    found: dict[str, memoryview] = {}
    for one, value in fields(data):
        if one == number:
            key, content = _pair(message(value))
            found[key] = content
    return found


def _node(data: memoryview) -> Node:
    name, op, inputs, attributes = "", "", list[str](), dict[str, memoryview]()
    for number, value in fields(data):
        if number == 1:
            name = bytes(message(value)).decode()
        elif number == 2:
            op = bytes(message(value)).decode()
        elif number == 3:
            inputs.append(bytes(message(value)).decode())
            if len(inputs) > _MOST_NODES:
                raise ValueError(f"found more than {_MOST_NODES:,} inputs of {name[:200]!r}")
        elif number == 5:
            key, content = _pair(message(value))
            attributes[key] = content
    return Node(name, op, tuple(inputs), attributes)


def _pair(data: memoryview) -> tuple[str, memoryview]:
    """Read an entry of a map."""
    key, content = "", memoryview(b"")
    for part, inner in fields(data):
        if part == 1:
            key = bytes(message(inner)).decode()
        elif part == 2:
            content = message(inner)
    return key, content


def _function(data: memoryview, most: int) -> Function:
    nodes: dict[str, Node] = {}
    name, arguments, kinds, outputs = "", list[str](), list[int](), list[str]()
    shapes: list[tuple[int, ...]] = []
    returns: dict[str, str] = {}
    for number, value in fields(data):
        if number == 1:
            for part, inner in fields(message(value)):
                if part == 1:
                    name = bytes(message(inner)).decode()
                elif part in (2, 3):
                    argument = _last(message(inner), (1,))
                    text = bytes(message(argument)).decode() if argument is not None else ""
                    (arguments if part == 2 else outputs).append(text)
                    if part == 2:
                        kind = _last(message(inner), (3,))
                        kinds.append(kind if isinstance(kind, int) else 0)
        elif number == 3:
            node = _node(message(value))
            nodes[node.name] = node
            if len(nodes) > most:
                raise ValueError(f"found more than {_MOST_NODES:,} nodes")
        elif number == 4:
            key, content = _pair(message(value))
            returns[key] = bytes(content).decode()
        elif number == 5:
            key, content = _pair(message(value))
            listed = _last(content, (1,)) if key == "_input_shapes" else None
            if listed is not None:
                shapes = [_rough(message(one)) for part, one in fields(message(listed)) if part == 7]
    return Function(name, tuple(arguments), tuple(kinds), tuple(shapes), tuple(outputs), nodes, returns)


def _rough(data: memoryview) -> tuple[int, ...]:
    """Return a shape; of one of unknown rank, nothing."""
    return () if any(number == 3 for number, _ in fields(data)) else read_shape(data)


def _info(data: memoryview) -> tuple[str, int, tuple[int, ...]]:
    """Return name, type and shape of a TensorInfo."""
    name, kind = "", 0
    shape: tuple[int, ...] = ()
    for number, value in fields(data):
        if number == 1:
            name = bytes(message(value)).decode()
        elif number == 2 and isinstance(value, int):
            kind = value
        elif number == 3:
            shape = read_shape(message(value))
    return name, kind, shape


def _children(data: memoryview) -> Iterator[tuple[str, int]]:
    """Yield the names and numbers of an object's parts."""
    for number, value in fields(data):
        if number == 1:
            at, name = _last(message(value), (1,)), _last(message(value), (2,))
            yield bytes(message(name)).decode() if name is not None else "", at if isinstance(at, int) else 0


def _object(objects: Sequence[memoryview], number: int, kind: int) -> memoryview | None:
    """Return the message of an object if it is of a kind: 6 a function, 7 a variable, 9 a constant."""
    if not 0 <= number < len(objects):
        raise ValueError(f"found object {number} of {len(objects)}")
    found = _last(objects[number], (kind,))
    return message(found) if found is not None else None
