"""The ROOT reader: trees (TTree, TNtuple, RNTuple) of numbers and vectors of numbers, read by uproot. `file.root:tree`
names the tree."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field as Setting

from clew.data.readers.base import ColumnReader, FilePiece, column_names, cut_evenly, make_table, open_file
from clew.data.readers.items import ItemCounts
from clew.data.readers.root_frames import check_list_frames
from clew.data.table import Column, Ragged, Table
from clew.data.table.ragged import Offsets
from clew.errors import ClewError, DataError, nearest
from clew.storage import split_inside

_TREES = ("TTree", "TNtuple", "TNtupleD", "ROOT::RNTuple")


class RootReader(ColumnReader):
    """Settings of the ROOT reader."""

    endings: ClassVar[tuple[str, ...]] = (".root",)

    tree: str = ""
    """The tree, if the location does not name it and the file has more than one."""
    columns: tuple[str, ...] = ()
    """Branches to read, by name or path. By default all branches of numbers, of arrays or of vectors of numbers;
    strings,
    objects and deeper nesting are left out. A column has the name of the last part of the path of its branch. If two
    would have the same name, it is the whole path with _ for /."""
    units: dict[str, str] = {}
    """Units of columns. The file does not contain them."""
    chunk: Annotated[int, Setting(ge=1)] = 20_000
    """Events per piece."""

    def pieces(self, location: str) -> list[FilePiece]:
        with self.open_tree(location) as tree:
            return cut_evenly(int(tree.num_entries), self.chunk)

    def load(self, location: str, piece: FilePiece) -> Table:
        with self.open_tree(location) as tree:
            shared: dict[str, Offsets] = {}
            columns = {name: _column(branch, piece, shared) for name, branch in self._branches(tree).items()}
        return make_table(columns, self.units)

    def item_counts(self, location: str, piece: FilePiece) -> ItemCounts:
        with self.open_tree(location) as tree:
            branches = {name: branch for name, branch in self._branches(tree).items() if branch.ragged}
            first: dict[str, str] = {}
            sets = {name: first.setdefault(branch.items, name) for name, branch in branches.items()}
            with _one_line_errors("the number of items cannot be read"):
                lengths = {name: branches[name].lengths(piece) for name in first.values()}
        return ItemCounts.of(lengths, sets)

    @contextlib.contextmanager
    def open_tree(self, location: str) -> Iterator[Any]:
        """Open the tree as an object of uproot, for a reader of branches that this one cannot read.

        Raises:
            DataError: the file cannot be read, or has no such tree.
        """
        import uproot

        check_list_frames()
        with (
            open_file(location) as stream,
            _one_line_errors("not a readable ROOT file"),
            # without threads: by default uproot leaves two of them in every process
            uproot.open(stream, use_threads=False, num_workers=1) as file,
        ):
            size, end = stream.seek(0, 2), int(file.file.fEND)
            if size < end:
                raise DataError(f"cut short: it has {size} bytes of {end}")
            yield file[self._tree_name(file, location)]

    def _tree_name(self, file: Any, location: str) -> str:
        name = split_inside(location)[1] or self.tree
        trees = [key for key, kind in file.classnames(cycle=False).items() if kind in _TREES]
        if not trees:
            raise DataError("no tree in it")
        if name and name.partition(";")[0] not in trees:
            raise DataError(f"no tree '{name}' in it{nearest(name, trees)}")
        if not name and len(trees) > 1:
            names = ", ".join(trees)
            raise DataError(f"several trees in it: {names}; name one after the file, as file.root:{trees[0]}")
        return name or trees[0]

    def _branches(self, tree: Any) -> dict[str, _Branch]:
        """Return the branches to read by the name of their column."""
        for name in self.columns:
            if name not in tree:
                branch_names = [path.rpartition("/")[2] for path in tree.keys()]  # noqa: SIM118 - iteration gives branches
                raise DataError(f"no branch '{name}'{nearest(name, branch_names)}")
            branch = _branch(tree[name])
            if not branch.usable:
                raise DataError(f"branch '{name}' holds {branch.kind}; only numbers and lists of numbers can be read")
        names = [*self.columns, *(name for name in self.optional if name in tree)]
        candidates = [_branch(tree[name]) for name in names] or map(_branch, tree.itervalues())
        chosen = [branch for branch in candidates if branch.usable]
        if not chosen:
            raise DataError("no branch of numbers in the tree")
        return dict(zip(column_names([branch.path for branch in chosen]), chosen, strict=True))


class _Branch:
    """A branch of a TTree."""

    def __init__(self, branch: Any) -> None:
        self.inner = branch
        self.path: str = branch.object_path.rpartition(":")[2]
        self.kind: str = branch.typename or "objects"

    @property
    def usable(self) -> bool:
        """Whether it holds numbers, arrays of them, or one level of vectors of either."""
        import uproot

        kind = self.inner.interpretation
        if isinstance(kind, uproot.AsJagged):
            kind = kind.content
        if len(self.inner.branches) or not isinstance(kind, uproot.AsDtype):
            return False
        return kind.to_dtype.base.fields is None and kind.to_dtype.base.kind in "biuf"

    @property
    def ragged(self) -> bool:
        """Whether the number of its items varies."""
        import uproot

        return isinstance(self.inner.interpretation, uproot.AsJagged)

    def lengths(self, piece: FilePiece) -> Any:
        """Return the number of items of each event, without the values where possible."""
        import uproot

        counter, kind = self.inner.count_branch, self.inner.interpretation
        if counter is not None and isinstance(counter.interpretation, uproot.AsDtype):
            return counter.array(entry_start=piece.start, entry_stop=piece.stop, library="np")
        raw = uproot.AsJagged(uproot.AsDtype("u1"), header_bytes=kind.header_bytes)
        data = self.inner.array(raw, entry_start=piece.start, entry_stop=piece.stop, library="ak")
        return _list_lengths(data) // kind.content.from_dtype.itemsize

    @property
    def items(self) -> str:
        """The set of items that it describes: those that another branch counts, or its own."""
        counter = self.inner.count_branch
        return str((self.inner if counter is None else counter).object_path)


class _Field(_Branch):
    """A field of an RNTuple."""

    def __init__(self, field: Any) -> None:
        self.inner = field
        self.path = field.path
        self.kind = field.typename or "records"

    @property
    def usable(self) -> bool:
        if len(self.inner.fields):
            return False
        inner = self.inner.array(entry_start=0, entry_stop=0).layout
        inner = inner.content if inner.is_list and not inner.is_regular else inner
        while inner.is_regular and inner.parameter("__array__") is None:
            inner = inner.content
        return inner.is_numpy and inner.parameter("__array__") is None

    @property
    def ragged(self) -> bool:
        layout = self.inner.array(entry_start=0, entry_stop=0).layout
        return bool(layout.is_list and not layout.is_regular)

    def lengths(self, piece: FilePiece) -> Any:
        return _list_lengths(self.inner.array(entry_start=piece.start, entry_stop=piece.stop))

    @property
    def items(self) -> str:
        own_list = "<" in self.kind and not self.kind.startswith("std::array")
        return self.path if own_list else self.path.rpartition(".")[0] or self.path


def _list_lengths(array: Any) -> Any:
    import awkward as ak

    return np.asarray(ak.to_numpy(ak.num(array, axis=1)))


def _branch(inner: Any) -> _Branch:
    import uproot

    return _Branch(inner) if isinstance(inner, uproot.TBranch) else _Field(inner)


def _column(branch: _Branch, piece: FilePiece, shared: dict[str, Offsets]) -> Column:
    import awkward as ak

    with _one_line_errors(f"branch '{branch.path}' cannot be read"):
        array = branch.inner.array(entry_start=piece.start, entry_stop=piece.stop, library="ak")
        layout = ak.to_packed(array, highlevel=False)
        if not layout.is_list or layout.is_regular:
            return np.asarray(ak.to_numpy(layout, allow_missing=False))
        lists = layout.to_ListOffsetArray64(True)
        offsets = np.asarray(lists.offsets.data)
        like = shared.setdefault(branch.items, offsets)
        values = np.asarray(ak.to_numpy(lists.content, allow_missing=False))
        return Ragged(values, like if np.array_equal(like, offsets) else offsets)


@contextlib.contextmanager
def _one_line_errors(what: str) -> Iterator[None]:
    """Turn any exception into one line: for a damaged file, uproot and its decoders can raise any exception."""
    try:
        yield
    except ClewError:
        raise
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        relevant = [line for line in lines if not line.startswith(("in file", "for file path", "in object"))]
        raise DataError(f"{what} ({' '.join(relevant[:2]) or type(error).__name__})") from error
