"""The contract a researcher fills in, and how a recipe is found."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from clew.core import entry_points
from clew.core.config import Section, to_data
from clew.errors import ClewError, RecipeError, nearest

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from clew.data.dataset.batch import Batch
    from clew.data.table import Table
    from clew.data.transforms import Transform
    from clew.figure import Figure
    from clew.metrics import Metric

ENTRY_POINTS = "clew.recipes"
TYPED_IN = "other processes cannot load it: save it in a file, or use one worker"


class Loss(NamedTuple):
    """A loss that averages exactly over any split of a batch: the sum over its terms, and how many there are.

    Gradients are those of `total` summed over all ranks, divided by `weight` summed over all ranks.
    """

    total: Tensor
    weight: float | Tensor


class Recipe:
    """Everything about one physics task. Subclass it; only `prepare` and `model` must be written.

    The data half (`read`, `transforms`, `prepare`, `look`, `reconstruct`, `metrics`, `display`) works on NumPy tables
    and must not import torch at module level: `clew prepare` never loads it. The model half gets torch tensors.
    A recipe is built in every process that needs it, so it holds its settings and nothing else.
    """

    Config: ClassVar[type[Section]] = Section
    """The recipe's own settings, one field a YAML section; `self.config` is an instance."""

    defaults: ClassVar[Mapping[str, Any]] = {}
    """What the recipe would rather have in clew's sections: `{"train": {"batch_size": 64}}`."""

    version: ClassVar[str] = "1"
    """Raise it when the meaning of prepared data changes in a way its code does not show."""

    columns: ClassVar[Sequence[str] | None] = None
    """The columns that become tensors for the model and the loss; None takes all."""

    events_per_file: ClassVar[int] = 256
    """Of the files that `generate` writes, or a multiple."""

    inference_batch_size: ClassVar[int] = 256
    """Samples that are judged or predicted at once where a run's own batches are smaller: nothing is learned from them,
    so only speed decides. Fewer where one sample is large."""

    location: ClassVar[str] = ""
    """Where `find` found the class: its name, or its file. Set by clew."""

    def __init__(self, config: Section | None = None) -> None:
        self.config: Any = self.Config() if config is None else config

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel between processes as a place and settings: a recipe from a file is loaded again over there."""
        if vars(type(self)).get("location"):
            return _rebuild, (self.location, to_data(self.config))
        return type(self), (self.config,)

    def read(self, path: str) -> Iterable[Table]:
        """The events of one input file (a path or a URL) as tables of bounded size.

        Yield them, or return a sequence that loads each when asked, as those of `clew.readers` do: its pieces are then
        read in parallel. The default picks a reader by the file's ending.
        """
        from clew import readers

        return readers.read(path)

    def transforms(self) -> Sequence[Transform]:
        """What is done to events, in order, before `prepare`. The default does nothing."""
        return ()

    def prepare(self, events: Table) -> Table:
        """Events to samples, one sample an event; a pure function of the events and the settings.

        It is never called without events.
        """
        raise RecipeError(f"recipe {type(self).__name__} must define prepare(events) -> Table")

    def label_columns(self) -> Sequence[str]:
        """The columns of raw events that only losses, metrics and event weights need, such as labels.

        Events to be predicted may lack them: transforms that need them are then passed over, and `prepare` must do
        without what those would have made. Anywhere else clew sees to it that they are there. The default names none.
        """
        return ()

    def passthrough_columns(self) -> Mapping[str, Sequence[str]]:
        """The columns of samples that `prepare` takes over from the events as they are, alone or several scalars side
        by side: `{"features": ("pt", "eta")}`. An exported model scales those itself, as the transforms did. The
        default names none.
        """
        return {}

    def generate(self, events: int, seed: int, folder: Path, first: int = 0) -> Iterator[tuple[Path, int]]:
        """Write synthetic raw events that `read` takes, in files under `folder`; yield each and its events.

        File names say `synthetic`. The same seed gives the same events, and more events begin with the same ones:
        event `first` and those after it do not depend on those before, so that processes can share the work. They are
        dealt out in pieces of `events_per_file`.
        """
        raise RecipeError(f"recipe {type(self).__name__} has no generator of events")

    def model(self) -> nn.Module:
        """A fresh network. Every process makes its own; rank 0's weights are handed to the others."""
        raise RecipeError(f"recipe {type(self).__name__} must define model() -> torch.nn.Module")

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        """The network's outputs for a batch: a tensor, or tensors by name.

        The default hands over the whole batch; a network that takes a plain tensor gets `model(batch["x"])`.
        """
        return model(batch)

    def loss(self, outputs: Any, batch: Batch) -> Tensor | Loss:
        """The loss of a batch: one an event (event weights are then applied), a mean over events, or a `Loss`."""
        raise RecipeError(f"recipe {type(self).__name__} must define loss(outputs, batch), or step(model, batch)")

    def step(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor | Loss] | Iterable[tuple[str, Tensor | Loss]]:
        """The losses of one training step, by the name of the optimiser that follows each.

        A mapping is computed at once, and then all optimisers step (the default: one, from `loss`). A generator
        of (name, loss) pairs alternates: each optimiser has stepped before the next loss is asked for, which is
        how adversarial training is written.
        """
        return {"loss": self.loss(self.forward(model, batch), batch)}

    def graph_capacity(self, batch: Batch, precision: str) -> Mapping[str, int] | None:
        """How many items of each ragged column a step is recorded for, if it can be recorded: the default says no.

        On an NVIDIA GPU `step` and its backward are then recorded once for all batches that need the same room, and
        replayed: hundreds of launches become one. It must do the same for every batch of a size, ask the device for no
        number, keep nothing of its own from step to step, and look at no item behind the last offset (those are zero).
        A step of fixed columns needs no room: `{}`. `batch` is on the processor still; `precision` is that of `train`.
        """
        return None

    def optimizers(self, model: nn.Module) -> Mapping[str, Iterable[nn.Parameter] | Optimizer]:
        """The named optimisers; the names are those `step` gives its losses.

        Parameters are given to an optimiser made from `train.optimizer`; an optimiser is taken as it is.
        """
        return {"loss": model.parameters()}

    def reconstruct(self, samples: Table, outputs: Mapping[str, Any]) -> Table:
        """Physics objects from a batch of samples and the network's outputs (NumPy arrays by name), one row an event.

        What an event gets must not depend on the others of the batch: number objects from 0 in each event. The default
        is the outputs themselves, where they have one row an event.
        """
        from clew.data.table import Table

        return Table({name: value for name, value in outputs.items() if len(value) == len(samples)})

    def metrics(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> Mapping[str, Metric]:
        """Tallies of a batch; they are added over batches and ranks. The loss is always there besides."""
        return {}

    def sample_plots(self, samples: Table) -> Mapping[str, Figure]:
        """Plots of single samples as they are, by title, for the page of `clew data inspect`; from the first few."""
        return {}

    def display(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> Mapping[str, Figure]:
        """Plots of single events for the report, from a few samples."""
        return {}


def find(name: str, *, base: Path | None = None) -> type[Recipe]:
    """The recipe class called `name`: shipped, from an entry point, or in a Python file.

    `base` is the folder that relative files are looked up from (default: the current one).

    Raises:
        RecipeError: there is none, or its code does not load.
    """
    if name.endswith(".py") or "/" in name:
        return _from_file((base or Path.cwd()) / Path(name).expanduser())
    table = shipped()
    if name not in table:
        table = available()
    if re.fullmatch(r"[\w.]+:[\w.]+", name):
        table[name] = name
    if name not in table:
        raise RecipeError(f"no recipe '{name}'{nearest(name, table)} (or give a file: my_recipe.py)")
    module, _, attribute = table[name].partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise RecipeError(f"recipe '{name}' ({table[name]}) does not load: {error}") from error
    return _checked(found, table[name], name)


def resolve(recipe: str | Recipe | type[Recipe]) -> Recipe:
    """A recipe from what a user may hand over: its name or file, its class, or the thing itself."""
    if isinstance(recipe, str):
        return find(recipe)()
    made = recipe() if isinstance(recipe, type) else recipe
    kind = type(made)
    if "location" not in vars(kind):
        kind.location = _location(kind)
    return made


def _location(kind: type[Recipe]) -> str:
    """Where a class that was imported, not found, can be found: a shipped name, or `module:Class`; '' for nowhere."""
    for name, place in shipped().items():
        module, _, attribute = place.partition(":")
        if kind is getattr(sys.modules.get(module), attribute, None):
            return name
    script = getattr(sys.modules["__main__"], "__file__", None)
    if kind.__module__ == "__main__" and script and Path(script).is_file():
        return str(Path(script).resolve())
    if kind.__module__ == "__main__" or kind is not getattr(sys.modules.get(kind.__module__), kind.__qualname__, None):
        return ""
    return f"{kind.__module__}:{kind.__qualname__}"


def _rebuild(location: str, config: dict[str, Any]) -> Recipe:
    found = find(location)
    return found(found.Config.model_validate(config))


def shipped() -> dict[str, str]:
    """The recipes that come with clew: the `module:Class` of each name."""
    return entry_points.shipped(ENTRY_POINTS)


def available() -> dict[str, str]:
    """All installed recipes, those of other packages included: the `module:Class` of each name."""
    return entry_points.installed(ENTRY_POINTS)


def load_code(place: str) -> Any:
    """What `file.py:name` or `module:name` stands for.

    Raises:
        RecipeError: there is no such thing, or its code does not load.
    """
    where, _, name = place.rpartition(":")
    if not where or not name:
        raise RecipeError(f"'{place}' is no place of code; write file.py:name or module:name")
    if where.endswith(".py"):
        if not Path(where).is_file():
            raise RecipeError(f"no file {where}")
        module = _loaded(Path(where).resolve())
    else:
        try:
            module = importlib.import_module(where)
        except ImportError as error:
            raise RecipeError(f"'{place}' does not load: {error}") from error
    if not hasattr(module, name):
        raise RecipeError(f"{where} has no '{name}'{nearest(name, vars(module))}")
    return getattr(module, name)


def _loaded(path: Path) -> Any:
    name = f"clew_recipe_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    return sys.modules.get(name) or _execute(path, name)


def _from_file(path: Path) -> type[Recipe]:
    if not path.is_file():
        raise RecipeError(f"no recipe file {path}")
    path = path.resolve()
    module = _loaded(path)
    name = module.__name__
    classes = {
        item
        for item in vars(module).values()
        if isinstance(item, type) and issubclass(item, Recipe) and item.__module__ == name
    }
    if len(classes) != 1:
        names = ", ".join(sorted(item.__name__ for item in classes)) or "none"
        raise RecipeError(f"{path}: expected one subclass of clew.Recipe, found {names}")
    return _checked(classes.pop(), str(path), str(path))


def _execute(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # its network lies beside it, as for a script
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        if isinstance(error, ClewError):
            raise
        where = _place_of(error, path)
        raise RecipeError(f"{where}: {type(error).__name__}: {getattr(error, 'msg', error)}") from error
    return module


def _place_of(error: BaseException, path: Path) -> str:
    """File and line: of the recipe, or of the module it imports where the syntax is wrong there."""
    if isinstance(error, SyntaxError):
        return f"{error.filename or path}:{error.lineno}"
    frame, place = error.__traceback__, str(path)
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == str(path):
            place = f"{path}:{frame.tb_lineno}"
        frame = frame.tb_next
    return place


def _checked(found: Any, where: str, location: str) -> type[Recipe]:
    if not (isinstance(found, type) and issubclass(found, Recipe)):
        raise RecipeError(f"{where} is not a subclass of clew.Recipe")
    for required in ("prepare", "model"):
        if getattr(found, required) is getattr(Recipe, required):
            raise RecipeError(f"{where}: recipe {found.__name__} must define {required}()")
    found.location = location
    return found
