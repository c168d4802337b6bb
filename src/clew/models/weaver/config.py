"""A data configuration of weaver as settings: the keys are weaver's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from clew.core.config import Section
from clew.errors import ConfigError
from clew.models.weaver.expressions import check, raw_columns
from clew.models.weaver.inputs import InputGroup, Scaling, WeaverInputs
from clew.models.weaver.weights import WeaverWeights

LABEL = "_label_"
"""The name of the class number of simple labels, as in weaver."""
BASE_WEIGHT = "_basewgt_"


def _checked(text: str) -> str:
    try:
        return check(text)
    except ConfigError as error:
        raise ValueError(str(error)) from error  # pydantic adds which setting it is


def _text(value: Any) -> Any:
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def _list(value: Any) -> Any:
    return () if value is None else value


WeaverExpression = Annotated[str, BeforeValidator(_text), AfterValidator(_checked)]
Names = Annotated[tuple[str, ...], BeforeValidator(_list)]
Variable = str | tuple[str | float | None, ...]
"""A name, or name, centre, factor, lowest value, highest value, padding."""


class Preprocess(Section):
    """The scaling of the inputs."""

    method: str = "manual"
    """`auto` measures centre and factor of the variables that have none: median and the larger distance to the 16% and
    84% quantiles."""
    data_fraction: float | None = 0.1
    """Share of the events that is measured."""
    params: dict[str, Scaling] | None = None
    """Centres and factors that weaver measured, as its `.auto.yaml` files have them."""


class Inputs(Section):
    """One input of the network."""

    length: Annotated[int, Field(ge=1)] | None
    """Number of items to which lists are cut or padded; null for variables with one value per event."""
    pad_mode: Literal["constant", "wrap"] = "constant"
    vars: tuple[Variable, ...]

    @field_validator("vars")
    @classmethod
    def _named(cls, variables: tuple[Variable, ...]) -> tuple[Variable, ...]:
        if not variables:
            raise ValueError("name at least one variable")
        for each in variables:
            name, *numbers = [each] if isinstance(each, str) else each
            fits = all(isinstance(n, (int, float)) or n is None or n == "auto" for n in numbers)
            if not isinstance(name, str) or len(numbers) > 5 or not fits:
                raise ValueError(f"{each} is not a name, or [name, centre, factor, lowest, highest, padding]")
        return variables


class Labels(Section):
    """The labels."""

    type: Literal["simple", "custom"]
    value: tuple[str, ...] | dict[str, WeaverExpression]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.type == "simple") != isinstance(self.value, tuple) or not self.value:
            raise ValueError("simple labels are a list of 0-1 variables, custom labels are expressions by name")
        return self


class Weights(Section):
    """The event weights: stored in the files, or computed from histograms."""

    use_precomputed_weights: bool
    weight_branches: tuple[str, ...] = ()
    reweight_method: Literal["flat", "ref"] = "flat"
    reweight_basewgt: WeaverExpression | None = None
    reweight_vars: dict[str, tuple[float, ...]] = {}
    reweight_classes: tuple[str, ...] = ()
    class_weights: tuple[float, ...] | None = None
    reweight_threshold: float = 10
    reweight_discard_under_overflow: bool = True
    reweight_hists: dict[str, tuple[tuple[float, ...], ...]] | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.use_precomputed_weights:
            if not self.weight_branches:
                raise ValueError("use_precomputed_weights needs weight_branches")
            return self
        if len(self.reweight_vars) != 2 or not self.reweight_classes:
            raise ValueError("histograms of weights need two reweight_vars, and reweight_classes")
        for name, edges in self.reweight_vars.items():
            if len(edges) < 2 or any(b <= a for a, b in pairwise(edges)):
                raise ValueError(f"the edges of '{name}' must rise, two at least")
        if self.class_weights is not None and len(self.class_weights) != len(self.reweight_classes):
            raise ValueError("class_weights needs one number per class of reweight_classes")
        return self


class DataConfig(Section):
    """A data configuration of weaver.

    Example:
        >>> data = DataConfig.model_validate({
        ...     "new_variables": {"part_pt": "np.hypot(part_px, part_py)"},
        ...     "inputs": {"pf_features": {"length": 8, "vars": [["part_pt", 1.7, 0.7]]}},
        ...     "labels": {"type": "simple", "value": ["is_top", "is_qcd"]},
        ... })
        >>> data.needed_columns()
        ('part_px', 'part_py', 'is_top', 'is_qcd')
        >>> data.input_shapes
        {'pf_features': (-1, 1, 8)}
    """

    treename: str | None = None
    branch_magic: dict[str, str] = {}
    """Text to replace in the names of variables to get the names of branches."""
    file_magic: dict[str, dict[str, float]] = {}
    """Variables with a value that depends on the name of the file: pattern and value by variable."""
    selection: WeaverExpression | None = None
    new_variables: dict[str, WeaverExpression] = {}
    preprocess: Preprocess = Preprocess()
    inputs: dict[str, Inputs]
    labels: Labels
    observers: Names = ()
    weights: Weights | None = None

    @field_validator("file_magic")
    @classmethod
    def _patterns(cls, magic: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
        for pattern in (pattern for patterns in magic.values() for pattern in patterns):
            try:
                re.compile(pattern)
            except (re.error, RecursionError, OverflowError) as error:
                raise ValueError(f"'{pattern}' is not a regular expression ({error})") from error
        return magic

    @property
    def input_names(self) -> tuple[str, ...]:
        """The inputs of the network, in the order of its arguments."""
        return tuple(self.inputs)

    @property
    def input_dicts(self) -> dict[str, list[str]]:
        """The variables of every input."""
        return {name: [_parts(each)[0] for each in group.vars] for name, group in self.inputs.items()}

    @property
    def input_shapes(self) -> dict[str, tuple[int, int, int | None]]:
        """The shapes of the inputs; -1 stands for the number of events."""
        return {name: (-1, len(group.vars), group.length) for name, group in self.inputs.items()}

    @property
    def label_names(self) -> tuple[str, ...]:
        """The columns of labels."""
        return (LABEL,) if self.labels.type == "simple" else tuple(self.labels.value)

    @property
    def label_value(self) -> Any:
        """The classes, as a list, or the expressions of labels by name."""
        value = self.labels.value
        return dict(value) if isinstance(value, Mapping) else list(value)

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables of all inputs."""
        return tuple(dict.fromkeys(name for names in self.input_dicts.values() for name in names))

    def needed_columns(self) -> tuple[str, ...]:
        """The columns that are read from files."""
        names = (*self.input_columns(), *self.label_inputs())
        made = {*self.file_magic}
        return tuple(name for name in dict.fromkeys(names) if name not in made)

    def input_columns(self) -> tuple[str, ...]:
        """The columns of files from which inputs and observers are made."""
        return raw_columns((*self.variables, *self.observers), self.new_variables)

    def label_inputs(self) -> tuple[str, ...]:
        """The columns of files for the selection, labels and weights."""
        selection = raw_columns(("?",), {**self.new_variables, "?": self.selection}) if self.selection else ()
        names = (*self.label_names, *self.weight_columns())
        return (*selection, *raw_columns(names, self.label_expressions()))

    def label_expressions(self) -> dict[str, str]:
        """Expressions of labels and weights, and of the variables in them."""
        value, weights = self.labels.value, self.weights
        labels = {LABEL: f"[{', '.join(value)}]"} if isinstance(value, tuple) else dict(value)
        base = {BASE_WEIGHT: weights.reweight_basewgt} if weights and weights.reweight_basewgt else {}
        return {**self.new_variables, **{name: text for name, text in labels.items() if text != name}, **base}

    def weight_columns(self) -> tuple[str, ...]:
        """The columns from which weights are computed."""
        weights = self.weights
        if weights is None:
            return ()
        if weights.use_precomputed_weights:
            return weights.weight_branches
        base = (BASE_WEIGHT,) if weights.reweight_basewgt else ()
        return (*weights.reweight_vars, *weights.reweight_classes, *base)

    def weight_transform(self) -> WeaverWeights | None:
        """The transform that computes the event weights."""
        weights = self.weights
        if weights is None:
            return None
        if weights.use_precomputed_weights:
            return WeaverWeights(factors=weights.weight_branches)
        return WeaverWeights(
            bins=weights.reweight_vars,
            classes=weights.reweight_classes,
            method=weights.reweight_method,
            class_weights=weights.class_weights or (1.0,) * len(weights.reweight_classes),
            threshold=weights.reweight_threshold,
            discard_outside=weights.reweight_discard_under_overflow,
            base=BASE_WEIGHT if weights.reweight_basewgt else None,
            histograms=weights.reweight_hists,
        )

    def input_transform(self) -> WeaverInputs:
        """The transform that scales, pads and stacks the inputs.

        Raises:
            ConfigError: Two inputs scale the same variable differently.
        """
        groups = {
            name: InputGroup(length=group.length, pad_mode=group.pad_mode, variables=tuple(self.input_dicts[name]))
            for name, group in self.inputs.items()
        }
        return WeaverInputs(groups=groups, scalings=self._scalings(), fraction=self.preprocess.data_fraction or 0.1)

    def _scalings(self) -> dict[str, Scaling]:
        automatic, measured = self.preprocess.method.lower().startswith("auto"), self.preprocess.params
        scalings: dict[str, Scaling] = {}
        for name, group in self.inputs.items():
            for each in group.vars:
                variable, *numbers = _parts(each)
                if measured and variable in measured:
                    scaling = measured[variable]
                else:
                    centre = "auto" if automatic and not variable.endswith("_mask") else None
                    scaling = Scaling.of(numbers, centre)
                if scalings.setdefault(variable, scaling) != scaling:
                    raise ConfigError(f"inputs: '{variable}' is scaled differently in '{name}' and in another input")
        return scalings


def _parts(variable: Variable) -> list[Any]:
    return [variable] if isinstance(variable, str) else list(variable)
