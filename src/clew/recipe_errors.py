"""Errors in the code of a recipe, in one line: the file and line, the source, the input, and what was expected.

A recipe is called in many places and processes. The code that knows the input (a piece of a file, a batch) uses
`recipe_errors` around the call; what passes it by is translated by the session of a rank or by the command line.
"""

from __future__ import annotations

import contextlib
import inspect
import linecache
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from clew.errors import ClewError, RecipeError, UserError

if TYPE_CHECKING:
    from clew.recipe import Recipe

EXPECTED = {
    "read": "read(path) must yield clew.Table objects",
    "transforms": "transforms() must return a sequence of transforms",
    "prepare": "prepare(events) must return a clew.Table with one row per event",
    "generate": "generate(...) must yield pairs (path, number of events)",
    "model": "model() must return a torch.nn.Module",
    "forward": "forward(model, batch) must return a tensor, or tensors by name",
    "loss": "loss(outputs, batch) must return a tensor with one value per event, a mean, or a clew.Loss",
    "step": "step(model, batch) must return losses by the name of their optimiser",
    "optimizers": "optimizers(model) must return parameters or an optimiser by name",
    "reconstruct": "reconstruct(samples, outputs) must return a clew.Table with one row per event",
    "metrics": "metrics(samples, outputs, objects) must return metrics by name, as clew.metrics.Mean.of(values)",
    "display": "display(samples, outputs, objects) must return figures by title",
    "sample_costs": "sample_costs(lengths) must return one number above 0 per sample",
    "sample_plots": "sample_plots(samples) must return figures by title",
}
"""What each method of a recipe must return."""
_MAX_SOURCE, _MAX_REASON = 120, 300
"""Longest quotation of a source line and of the text of an exception, in characters."""
_CLEW = str(Path(__file__).parent)
_PYTHON = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
_INSTALLED = ("site-packages", "dist-packages")


class RecipeCodeError(RecipeError):
    """The code of a recipe, or of a model that the user wrote, raised an exception.

    Args:
        message: One line with the place, the exception, the input and what was expected.
        trace: The traceback from the user's code on, for `--debug`.
    """

    def __init__(self, message: str, trace: str = "") -> None:
        super().__init__(message)
        self.trace = trace


@contextlib.contextmanager
def recipe_errors(describe_input: Callable[[], str] | str = "") -> Iterator[None]:
    """Raise exceptions of the user's code as one line that names the place. Other exceptions pass unchanged.

    Args:
        describe_input: The input of the code, or a function that returns it, for the message.

    Raises:
        RecipeCodeError: The block ended with an exception of the user's code.

    Example:
        >>> with recipe_errors("input events.h5"):
        ...     pass
    """
    try:
        yield
    except Exception as error:
        translated = recipe_error(error, describe_input)
        if translated is error:
            raise
        raise translated from error


def recipe_error(error: Exception, describe_input: Callable[[], str] | str = "") -> Exception:
    """Return the error to report for an exception: itself, if no code of the user's took part.

    Args:
        error: The exception, with its traceback.
        describe_input: The input of the code, or a function that returns it, for the message.
    """
    if isinstance(error, ClewError) and (not isinstance(error, UserError) or hasattr(error, "located")):
        return error
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    user_code = _user_frames([frame for frame, _ in frames])
    if not user_code:
        return error
    frame, line = frames[user_code[-1]]
    source = linecache.getline(frame.f_code.co_filename, line).strip()
    quoted = f"`{_shorten(source, _MAX_SOURCE)}`" if source else ""
    place = f"{short_path(frame.f_code.co_filename)}:{line}"
    if isinstance(error, UserError):
        return _with_place(error, f"{place}: {quoted}", raised_there=user_code[-1] == len(frames) - 1)
    method = _recipe_method([frame for frame, _ in frames])
    where = f", in {method}()" if method else ""
    parts = [
        f"{place}: {_reason(error)}{where}{': ' if quoted else ''}{quoted}",
        describe_input() if callable(describe_input) else describe_input,
        "lower train.batch_size, or set train.accumulate" if _out_of_memory(error) else EXPECTED.get(method, ""),
    ]
    trace = "".join(traceback.format_list(traceback.extract_tb(error.__traceback__)[user_code[0] :]))
    return _located(RecipeCodeError("; ".join(part for part in parts if part), f"{trace}{_reason(error)}"))


def wrong_return(recipe: Recipe, method: str, returned: str) -> RecipeError:
    """Return the error for a method of a recipe that returned something else than it must.

    Args:
        recipe: The recipe.
        method: Name of the method.
        returned: What it returned, in words.
    """
    return RecipeError(f"{method_place(recipe, method)}: {method}() returned {returned}; {EXPECTED[method]}")


def method_place(recipe: Recipe, method: str) -> str:
    """Return file and line of the definition of a recipe's method, or the name of its class."""
    code = getattr(inspect.unwrap(getattr(type(recipe), method)), "__code__", None)
    return type(recipe).__name__ if code is None else f"{short_path(code.co_filename)}:{code.co_firstlineno}"


def class_place(recipe: Recipe) -> str:
    """Return file and line of the class of a recipe, or the name of its class."""
    try:
        line = inspect.getsourcelines(type(recipe))[1]
        return f"{short_path(inspect.getfile(type(recipe)))}:{line}"
    except (OSError, TypeError):
        return type(recipe).__name__


def short_path(file: str) -> str:
    """Return the path of a file relative to the current folder, if it is in there."""
    with contextlib.suppress(ValueError, OSError):
        return str(Path(file).relative_to(Path.cwd()))
    return file


def _user_frames(frames: Sequence[FrameType]) -> list[int]:
    """Return the places of the frames of user code that clew called: not those of a script that calls clew."""
    files = [frame.f_code.co_filename for frame in frames]
    packages = {package for frame in frames if (package := _package_of_recipe(frame))}
    first = next((place for place, file in enumerate(files) if file.startswith(_CLEW)), len(files))
    return [place for place in range(first, len(files)) if _is_user_code(files[place], packages)]


def _is_user_code(file: str, packages: set[str]) -> bool:
    if any(file.startswith(package) for package in packages):
        return True
    if file.startswith("<"):
        return file.startswith(("<ipython", "<stdin"))
    library = file.startswith((_CLEW, *_PYTHON)) or any(part in _INSTALLED for part in Path(file).parts)
    return not library


def _package_of_recipe(frame: FrameType) -> str:
    """Return the folder of the package, or the file, of the recipe whose method a frame runs: it may be installed."""
    recipe = frame.f_locals.get("self")
    from clew.recipe import Recipe  # the command line uses this module and starts without pydantic

    if not isinstance(recipe, Recipe):
        return ""
    name = type(recipe).__module__.partition(".")[0]
    module = sys.modules.get(name)
    if name == "clew" or module is None:
        return ""
    folders: Sequence[str] = list(getattr(module, "__path__", []))
    return folders[0] if folders else str(getattr(module, "__file__", None) or "")


def _recipe_method(frames: Sequence[FrameType]) -> str:
    """Return the method of the recipe that clew called last, or ''."""
    from clew.recipe import Recipe

    names = [frame.f_code.co_name for frame in frames if isinstance(frame.f_locals.get("self"), Recipe)]
    return next((name for name in reversed(names) if name in EXPECTED), "")


def _with_place(error: UserError, place: str, *, raised_there: bool) -> UserError:
    """Return an error that clew raised for a call in user code with the place of the call. An error that the user's own
    code raised says all that its author wants it to say."""
    if raised_there or type(error).__init__ is not UserError.__init__:
        return error
    return _located(type(error)(f"{error} ({place})"))


def _located(error: UserError) -> UserError:
    error.located = True  # type: ignore[attr-defined]
    return error


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    name = type(error).__name__
    return _shorten(f"{name}: {lines[0]}" if lines else name, _MAX_REASON)


def _out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def _shorten(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
