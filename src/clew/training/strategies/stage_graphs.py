"""Division of a model into stages at named modules, for `pipeline`.

torch.fx traces the forward methods of the modules that contain a split point. Every other module is called as it is, so
only the code around split points must be traceable. A stage gets the tensors of earlier stages that it or a later stage
needs, and the inputs of the model, which every rank has.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, fx, nn
from torch.fx import Graph, GraphModule, Node

from clew.errors import ConfigError, list_names, nearest

_SETTING = "train.split_points"
_RANDOM = ("rand", "dropout", "bernoulli", "multinomial", "normal", "poisson", "exponential", "uniform", "gumbel")
"""Parts of the names of functions that must not be computed twice."""
_SHAPE_METHODS = ("size", "dim", "numel", "stride")
_SHAPE_ATTRIBUTES = ("shape", "ndim", "dtype", "device")
_CALLS = ("call_function", "call_method")


class Division:
    """A model divided into stages. All ranks compute the same one."""

    def __init__(self, graph: Graph, starts: Mapping[Node, str]) -> None:
        """Assign a stage to every operation.

        Args:
            graph: The operations of the model.
            starts: The first operation of each stage, in the order of their computation, and its split point. That of
                the first one is empty.
        """
        self.graph, self.stages, self.points = graph, len(starts), [*starts.values()][1:]
        self.stage_of: dict[Node, int] = {}
        self._copied: set[Node] = set()
        """What every stage computes for itself: shapes, and functions of the inputs of the model."""
        stage = -1
        for node in graph.nodes:
            stage += node in starts
            self.stage_of[node] = max(stage, 0)
            if _is_shape(node) or (_is_repeatable(node) and all(map(self._is_input, node.all_input_nodes))):
                self._copied.add(node)

    def stage_module(self, model: nn.Module, stage: int) -> GraphModule:
        """Return the function of a stage, which calls modules of `model`.

        Its positional arguments are the values of `received`, and its keyword arguments are inputs of the model.
        """
        graph, copies = Graph(), dict[Node, Node]()

        def copy(node: Node) -> Node:
            if node not in copies:
                copies[node] = graph.node_copy(node, copy)
            return copies[node]

        for number, value in enumerate(self.received(stage)):
            copies[value] = graph.placeholder(f"received_{number}")
        for name in self.inputs(stage):
            copy(next(node for node in self.graph.nodes if node.target == name and node.op == "placeholder"))
        for node in self.graph.nodes:
            if self.stage_of[node] == stage and self._is_bound(node) and node.op != "output":
                copy(node)
        if stage == self.stages - 1:
            copy(next(iter(reversed(self.graph.nodes))))
        else:
            graph.output(tuple(copies[node] for node in self.received(stage + 1)))
        return GraphModule(model, graph)

    def received(self, stage: int) -> list[Node]:
        """Return the values that a stage gets from the stage before it, for itself and for later stages."""
        needed = {value for node, own in self.stage_of.items() if own >= stage for value in self._needs(node)}
        return [node for node, own in self.stage_of.items() if own < stage and node in needed and self._is_bound(node)]

    def inputs(self, stage: int) -> list[str]:
        """Return the names of the inputs of the model that a stage uses."""
        needed = {value for node, own in self.stage_of.items() if own == stage for value in self._needs(node)}
        return [str(node.target) for node in self.graph.nodes if node.op == "placeholder" and node in needed]

    def owned_names(self, model: nn.Module) -> list[set[str]]:
        """Return the names of the parameters and buffers that each stage uses. What none uses belongs to the first."""
        tensors = dict(named_tensors(model))
        names: list[set[str]] = [set() for _ in range(self.stages)]
        for node, stage in self.stage_of.items():
            if node.op == "call_module":
                names[stage] |= {name for name in tensors if name.startswith(f"{node.target}.")}
            elif node.op == "get_attr" and node.target in tensors:
                for user in node.users:
                    names[self.stage_of[user]].add(str(node.target))
        for name in tensors.keys() - set.union(*names):
            same = (own for own in names if any(tensors[other] is tensors[name] for other in own))
            next(same, names[0]).add(name)
        return names

    def check(self, model: nn.Module) -> None:
        """Check that every stage can train alone.

        Raises:
            ConfigError: A parameter belongs to two stages or none to a stage, or a later stage sees a value that an
                earlier one changes in place.
        """
        tensors, owner = dict(named_tensors(model)), dict[int, int]()
        read = {str(node.target) for node in self.graph.nodes if node.op == "get_attr"}
        for stage, names in enumerate(self.owned_names(model)):
            for name in sorted(names):
                constant = name in read and not isinstance(tensors[name], nn.Parameter)
                if not constant and owner.setdefault(id(tensors[name]), stage) != stage:
                    raise ConfigError(f"{_SETTING}: '{name}' would be used by two stages; choose other split points")
            if not any(isinstance(tensors[name], nn.Parameter) for name in names):
                raise ConfigError(f"{_SETTING}: stage {stage + 1} would have no parameters; choose other split points")
        for node, stage in self.stage_of.items():
            changed = node.args[0] if _is_in_place(node) and node.args else None
            if isinstance(changed, Node) and any(self.stage_of[user] > stage for user in changed.users):
                raise ConfigError(f"{_SETTING}: '{node.name}' changes a tensor that a later stage uses in place")

    def _needs(self, node: Node) -> Iterator[Node]:
        """Yield the values that a stage must get to compute a node."""
        for value in node.all_input_nodes:
            if value in self._copied:
                yield from self._needs(value)
            else:
                yield value

    def _is_input(self, node: Node) -> bool:
        return node.op == "placeholder" or node in self._copied

    def _is_bound(self, node: Node) -> bool:
        """Whether a node is computed by one stage only."""
        return node.op not in ("placeholder", "get_attr") and node not in self._copied


def divide(model: nn.Module, split_points: Sequence[str], stages: int) -> Division:
    """Divide a model at some of its split points, so that stages have a similar number of parameters.

    Args:
        model: The model, in the mode (training or evaluation) in which the stages will be called.
        split_points: Names of modules with which a stage may start. For an `nn.Sequential` the default is any entry.
        stages: The number of stages.

    Raises:
        ConfigError: The model cannot be divided in this way.
    """
    children = [name for name, _ in model.named_children()]
    points = list(split_points) or (children if isinstance(model, nn.Sequential) else [])
    if not points:
        raise ConfigError(
            "train.strategy pipeline divides an nn.Sequential, or another model at train.split_points; the model is a "
            f"{type(model).__name__} of {list_names(children) or 'no modules'}"
        )
    chain = type(model).forward is nn.Sequential.forward and set(points) <= set(children)
    graph = _chain_graph(children) if chain else _trace(model, points)
    starts = _first_operations(graph, points)
    if len(starts) < stages:
        given = f"stages that {_SETTING} allows" if split_points else "entries of the nn.Sequential"
        raise ConfigError(f"train.strategy pipeline needs {stages} stages, one per worker; {len(starts)} {given}")
    tensors, sizes, counted = dict(named_tensors(model)), [], set[str]()
    for names in Division(graph, starts).owned_names(model):
        sizes.append(sum(tensors[name].numel() for name in names - counted if isinstance(tensors[name], nn.Parameter)))
        counted |= names
    bounds = stage_bounds(sizes, stages)
    division = Division(graph, {node: name for n, (node, name) in enumerate(starts.items()) if n in bounds})
    division.check(model)
    return division


def named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield all parameters and buffers with their names. A tensor with two names comes twice."""
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def keep_only(model: nn.Module, names: set[str]) -> None:
    """Remove all parameters and buffers of a model but these. The others keep their names."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        for tensors in (module._parameters, module._buffers):
            for name in tensors:
                if (f"{prefix}.{name}" if prefix else name) not in names:
                    tensors[name] = None


def stage_bounds(sizes: Sequence[int], parts: int) -> list[int]:
    """Return the bounds of `parts` runs of layers, with a similar number of parameters each. None is empty."""
    total, bounds, done = sum(sizes), [0], 0
    for layer, size in enumerate(sizes):
        left, needed = len(sizes) - layer, parts - len(bounds)
        if layer > bounds[-1] and needed and (done >= total * len(bounds) / parts - size / 2 or left == needed):
            bounds.append(layer)
        done += size
    return [*bounds, len(sizes)]


class _Tracer(fx.Tracer):
    """Traces the modules that contain a split point, and no other."""

    proxy_buffer_attributes = True

    def __init__(self, points: Sequence[str]) -> None:
        super().__init__()
        self._points = points
        self.module_stack: OrderedDict[str, tuple[str, Any]] = OrderedDict()

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not any(point.startswith(f"{module_qualified_name}.") for point in self._points)


def _chain_graph(names: Sequence[str]) -> Graph:
    """Return the operations of an `nn.Sequential`."""
    graph = Graph()
    value = graph.placeholder("input")
    for name in names:
        value = graph.call_module(name, (value,))
    graph.output(value)
    return graph


def _trace(model: nn.Module, points: Sequence[str]) -> Graph:
    """Return the operations of a model.

    Raises:
        ConfigError: A split point does not exist, or code around one cannot be traced.
    """
    names = [name for name, _ in model.named_modules(remove_duplicate=False) if name]
    for point in points:
        if point not in names:
            raise ConfigError(f"{_SETTING}: the model has no module '{point}'{nearest(point, names)}")
    tracer = _Tracer(points)
    try:
        graph = tracer.trace(model)
    except Exception as error:
        module = next(reversed(tracer.module_stack), None)
        place = "the model" if module is None else f"'{module}'"
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(
            f"{_SETTING}: forward() of {place} cannot be divided, because torch.fx "
            f"cannot trace it ({reason}); choose split points outside of it"
        ) from error
    if any(node.op == "placeholder" and str(node.target).startswith("*") for node in graph.nodes):
        raise ConfigError(f"{_SETTING}: forward() of the model must name its arguments, without * and **")
    return graph


def _first_operations(graph: Graph, points: Sequence[str]) -> dict[Node, str]:
    """Return the first operation of the model and of each split point, in the order of their computation.

    Raises:
        ConfigError: The model does not call a split point.
    """
    operations = [node for node in graph.nodes if node.op in ("call_module", *_CALLS)]
    starts = dict[Node, str]()
    for point in points:
        inside = (node for node in operations if point in _module_names(node))
        start = next(inside, None)
        if start is None:
            raise ConfigError(f"{_SETTING}: forward() does not call '{point}'")
        starts[start] = point
    starts |= dict.fromkeys(operations[:1], "")
    return {node: starts[node] for node in operations if node in starts}


def _module_names(node: Node) -> set[str]:
    """Return the names of the modules to which an operation belongs."""
    stack = node.meta.get("nn_module_stack", {})
    return {name for name, _ in stack.values()} | ({str(node.target)} if node.op == "call_module" else set())


def _function_name(node: Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def _is_shape(node: Node) -> bool:
    if node.op == "call_function" and node.target is getattr:
        return node.args[1] in _SHAPE_ATTRIBUTES
    return node.op == "call_method" and node.target in _SHAPE_METHODS


def _is_in_place(node: Node) -> bool:
    name = _function_name(node)
    return (node.op in _CALLS and name.endswith("_") and not name.endswith("__")) or (
        node.op == "call_function" and getattr(node.target, "__module__", "") == "_operator" and name in _IN_PLACE
    )


_IN_PLACE = ("iadd", "isub", "imul", "itruediv", "ifloordiv", "iand", "ior", "ixor", "ipow", "imod", "imatmul")


def _is_repeatable(node: Node) -> bool:
    name = _function_name(node)
    return node.op in _CALLS and not _is_in_place(node) and not any(part in name for part in _RANDOM)
