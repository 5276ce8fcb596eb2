"""The functions that make arrays, as numpy names them."""

from __future__ import annotations

import math
import operator
import os
import stat
from typing import TYPE_CHECKING, Any, Optional, Sequence, Tuple, Type, TypeVar, Union, overload

import numpy as np

from . import _files
from ._errors import InvalidError
from ._memory import Owner, memory_of

if TYPE_CHECKING:
    from typing import Literal

    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from ._files import Mode, Order

    Shape = Union[int, Sequence[int]]
    Path = Union[str, "os.PathLike[str]"]
    AnyOrder = Literal["K", "A", "C", "F"]
    S = TypeVar("S", bound=np.generic)
    Kind = Union[Type[S], "np.dtype[S]"]
    AnyKind = Optional[DTypeLike]

PIECE = 1 << 20
"""Values of a piece of ``arange``."""


def dimensions(shape: Any) -> Tuple[int, ...]:
    """A shape as numpy reads it."""
    try:
        numbers: Tuple[int, ...] = (operator.index(shape),)
    except TypeError:
        if isinstance(shape, (str, bytes)):
            raise
        numbers = tuple(operator.index(n) for n in shape)
    if any(n < 0 for n in numbers):
        raise InvalidError("negative dimensions are not allowed")
    return numbers


class Arrays(Owner):
    """What a pager makes arrays with; ``_new`` gives the memory."""

    def _new(self, shape: Any, dtype: Any, order: str) -> NDArray[Any]:
        raise NotImplementedError

    @overload
    def empty(self, shape: Shape, dtype: None = ..., order: Order = ...) -> NDArray[np.float64]: ...
    @overload
    def empty(self, shape: Shape, dtype: Kind[S], order: Order = ...) -> NDArray[S]: ...
    @overload
    def empty(self, shape: Shape, dtype: DTypeLike, order: Order = ...) -> NDArray[Any]: ...
    def empty(self, shape: Shape, dtype: AnyKind = None, order: Order = "C") -> NDArray[Any]:
        """A new array, as ``numpy.empty`` or ``zeros``: what nobody has written is zero.

        :raises RoomError: it would not fit into budget and devices, with the arrays that there are
        """
        return self._new(shape, dtype, order)

    zeros = empty

    @overload
    def ones(self, shape: Shape, dtype: None = ..., order: Order = ...) -> NDArray[np.float64]: ...
    @overload
    def ones(self, shape: Shape, dtype: Kind[S], order: Order = ...) -> NDArray[S]: ...
    @overload
    def ones(self, shape: Shape, dtype: DTypeLike, order: Order = ...) -> NDArray[Any]: ...
    def ones(self, shape: Shape, dtype: AnyKind = None, order: Order = "C") -> NDArray[Any]:
        """A new array of ones, as ``numpy.ones``."""
        return self.full(shape, 1, np.float64 if dtype is None else dtype, order)

    @overload
    def full(self, shape: Shape, fill_value: Any, dtype: Kind[S], order: Order = ...) -> NDArray[S]: ...
    @overload
    def full(self, shape: Shape, fill_value: Any, dtype: AnyKind = ..., order: Order = ...) -> NDArray[Any]: ...
    def full(self, shape: Shape, fill_value: Any, dtype: AnyKind = None, order: Order = "C") -> NDArray[Any]:
        """A new array with one value everywhere, as ``numpy.full``."""
        array = self._new(shape, np.asarray(fill_value).dtype if dtype is None else dtype, order)
        np.copyto(array, fill_value, casting="unsafe")
        return array

    @overload
    def empty_like(
        self, prototype: NDArray[S], dtype: None = ..., order: AnyOrder = ..., shape: Optional[Shape] = ...
    ) -> NDArray[S]: ...
    @overload
    def empty_like(
        self, prototype: ArrayLike, dtype: Kind[S], order: AnyOrder = ..., shape: Optional[Shape] = ...
    ) -> NDArray[S]: ...
    @overload
    def empty_like(
        self, prototype: ArrayLike, dtype: AnyKind = ..., order: AnyOrder = ..., shape: Optional[Shape] = ...
    ) -> NDArray[Any]: ...
    def empty_like(
        self, prototype: ArrayLike, dtype: AnyKind = None, order: AnyOrder = "K", shape: Optional[Shape] = None
    ) -> NDArray[Any]:
        """A new array with shape, type and order of another one, as ``numpy.zeros_like``; no subclass."""
        source = np.asarray(prototype)
        kind = source.dtype if dtype is None else dtype
        sizes = source.shape if shape is None else dimensions(shape)
        if order == "K" and len(sizes) != source.ndim:
            order = "C"
        if order == "K" and not source.flags.forc:  # axes lie in memory as the other's do
            axes = sorted(range(source.ndim), key=lambda axis: -abs(source.strides[axis]))
            array = self._new([sizes[axis] for axis in axes], kind, "C")
            return array.transpose(np.argsort(axes))
        return self._new(sizes, kind, ("F" if source.flags.fnc else "C") if order in "KA" else order)

    zeros_like = empty_like

    @overload
    def full_like(
        self,
        prototype: NDArray[S],
        fill_value: Any,
        dtype: None = ...,
        order: AnyOrder = ...,
        shape: Optional[Shape] = ...,
    ) -> NDArray[S]: ...
    @overload
    def full_like(
        self,
        prototype: ArrayLike,
        fill_value: Any,
        dtype: Kind[S],
        order: AnyOrder = ...,
        shape: Optional[Shape] = ...,
    ) -> NDArray[S]: ...
    @overload
    def full_like(
        self,
        prototype: ArrayLike,
        fill_value: Any,
        dtype: AnyKind = ...,
        order: AnyOrder = ...,
        shape: Optional[Shape] = ...,
    ) -> NDArray[Any]: ...
    def full_like(
        self,
        prototype: ArrayLike,
        fill_value: Any,
        dtype: AnyKind = None,
        order: AnyOrder = "K",
        shape: Optional[Shape] = None,
    ) -> NDArray[Any]:
        """The same with one value everywhere, as ``numpy.full_like``."""
        array: NDArray[Any] = self.empty_like(prototype, dtype, order, shape)
        np.copyto(array, fill_value, casting="unsafe")
        return array

    @overload
    def array(self, values: NDArray[S], dtype: None = ..., order: AnyOrder = ...) -> NDArray[S]: ...
    @overload
    def array(self, values: ArrayLike, dtype: Kind[S], order: AnyOrder = ...) -> NDArray[S]: ...
    @overload
    def array(self, values: ArrayLike, dtype: AnyKind = ..., order: AnyOrder = ...) -> NDArray[Any]: ...
    def array(self, values: ArrayLike, dtype: AnyKind = None, order: AnyOrder = "K") -> NDArray[Any]:
        """A copy of an array, or of what ``numpy.asarray`` makes of ``values`` (that is in ordinary memory first)."""
        source = np.asarray(values) if isinstance(values, np.ndarray) else np.asarray(values, dtype)
        kind = source.dtype if dtype is None else np.dtype(dtype)
        if kind.itemsize == 0 or kind.str[1:] in ("M8", "m8"):  # numpy looks at the values for what is left open
            source = source.astype(kind)
            kind = source.dtype
        array: NDArray[Any] = self.empty_like(source, kind, order)
        np.copyto(array, source, casting="unsafe")
        return array

    @overload
    def asarray(self, values: NDArray[S], dtype: None = ..., order: AnyOrder = ...) -> NDArray[S]: ...
    @overload
    def asarray(self, values: ArrayLike, dtype: Kind[S], order: AnyOrder = ...) -> NDArray[S]: ...
    @overload
    def asarray(self, values: ArrayLike, dtype: AnyKind = ..., order: AnyOrder = ...) -> NDArray[Any]: ...
    def asarray(self, values: ArrayLike, dtype: AnyKind = None, order: AnyOrder = "K") -> NDArray[Any]:
        """``values`` themselves if they are an array that this pager's functions have made, of this type and order;
        else a copy in this pager, as :meth:`array` makes it.
        """
        memory = memory_of(values)
        if memory is not None and memory.pager is self:
            there = np.asarray(values)
            fits = {"C": there.flags.c_contiguous, "F": there.flags.f_contiguous}.get(order, True)
            if fits and (dtype is None or np.dtype(dtype) == there.dtype):
                return there
        return self.array(values, dtype, order)

    @overload
    def arange(self, start: Any, stop: Any, step: Any, dtype: Kind[S]) -> NDArray[S]: ...
    @overload
    def arange(self, start: Any, stop: Any = ..., step: Any = ..., *, dtype: Kind[S]) -> NDArray[S]: ...
    @overload
    def arange(self, start: Any, stop: Any = ..., step: Any = ..., dtype: AnyKind = ...) -> NDArray[Any]: ...
    def arange(self, start: Any, stop: Any = None, step: Any = 1, dtype: AnyKind = None) -> NDArray[Any]:
        """Numbers at equal distances, as ``numpy.arange``: of ``start``, if it is the only one, from 0 on.

        What is neither whole numbers nor floating ones is in ordinary memory first.
        """
        low, high = (0, start) if stop is None else (start, stop)
        if dtype is None:
            kind = np.result_type(*(np.arange(end, end, step) for end in (low, high)))
        else:
            kind = np.dtype(dtype)
        whole = kind.kind in "iu"
        numbers = all(np.isrealobj(np.asarray(number)) for number in (low, high, step))
        if not numbers or not (whole or kind.kind == "f" and kind.itemsize > 2):
            return self.array(np.arange(start, stop, step, dtype=kind))
        if not step:
            raise ZeroDivisionError("a step of zero")
        array = self._new(max(math.ceil((high - low) / step), 0), kind, "C")
        # As numpy does it: from the first two values.
        first = np.zeros(2, kind)
        first[: len(array)] = [low, low + step][: len(array)]
        for at in range(0, len(array), PIECE):
            piece = array[at : at + PIECE]
            np.multiply(np.arange(at, at + len(piece)).astype(kind), first[1:] - first[:1], out=piece)
            piece += first[:1]
        array[:2] = first[: len(array)]
        return array

    @overload
    def from_file(
        self,
        path: Path,
        dtype: DTypeLike = ...,
        shape: Optional[Shape] = ...,
        offset: int = ...,
        order: Order = ...,
        *,
        mode: Literal["r+", "w+"],
        progress: Optional[bool] = ...,
    ) -> np.memmap[Any, Any]: ...
    @overload
    def from_file(
        self,
        path: Path,
        dtype: Kind[S],
        shape: Optional[Shape] = ...,
        offset: int = ...,
        order: Order = ...,
        *,
        mode: Mode = ...,
        progress: Optional[bool] = ...,
    ) -> NDArray[S]: ...
    @overload
    def from_file(
        self,
        path: Path,
        dtype: DTypeLike = ...,
        shape: Optional[Shape] = ...,
        offset: int = ...,
        order: Order = ...,
        *,
        mode: Mode = ...,
        progress: Optional[bool] = ...,
    ) -> NDArray[Any]: ...
    def from_file(
        self,
        path: Path,
        dtype: DTypeLike = np.uint8,
        shape: Optional[Shape] = None,
        offset: int = 0,
        order: Order = "C",
        *,
        mode: Mode = "c",
        progress: Optional[bool] = None,
    ) -> NDArray[Any]:
        """A file of plain values, as ``numpy.memmap`` takes it.

        :param shape: default: one dimension, to the file's end
        :param offset: bytes of the file before the first value
        :param mode: ``"c"``: read into a new array; the file stays as it is. ``"r+"``: the file itself, there at once:
            a ``numpy.memmap``, read when it is touched, whose changes are the file's; ``flush()`` brings them to its
            disk. ``"w+"``: the same in a new file, which replaces one that there is. ``"r"``: the same, and it cannot
            be written. The kernel can write and drop pages of files at any time, so they are in no budget, and need
            no swap
        :param progress: a bar, by ``tqdm`` if it is installed. Default: in terminals and notebooks, after two seconds
        :raises InvalidError: the file is too short
        """
        kind = np.dtype(dtype)
        if kind.itemsize == 0:
            raise InvalidError(f"values of {kind} have no size: name one, as in 'S8'")
        if mode == "w+" and shape is None:
            raise InvalidError("a new file has no values yet: name the shape")
        # All is looked at before a file is changed. The first array refuses objects.
        self._new(0, kind, order)
        sizes = None if shape is None else dimensions(shape)
        offset, needs = operator.index(offset), kind.itemsize * math.prod(sizes or ())
        if offset < 0 or offset + needs >= _files.SIZE_MAX:
            raise InvalidError(f"no file has {needs} bytes from {offset} on")
        with _files.opened(path, mode) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode) and (sizes is None or mode != "c"):
                raise InvalidError(f"{path} is no ordinary file: name the shape, and no mode")
            there = max(file.seek(0, os.SEEK_END) - offset, 0)
            if sizes is None:
                if there % kind.itemsize:
                    raise InvalidError(f"{path} has {there} bytes from {offset} on, no multiple of {kind.itemsize}")
                sizes = (there // kind.itemsize,)
            needs = kind.itemsize * math.prod(sizes)
            if mode != "w+" and needs > there:
                raise InvalidError(f"{path} has {there} bytes from {offset} on, the array needs {needs}")
            if mode != "c":
                return _files.mapped(file, kind, mode, offset, sizes, order)
            array = self._new(sizes, kind, order)
            if needs:
                file.seek(offset)
                _files.read_into(file, array, progress)
            return array

    def load(self, file: Path, *, mode: Mode = "c", progress: Optional[bool] = None) -> Any:
        """A ``.npy`` file as a new array, or the arrays of an ``.npz`` file as a dictionary.

        :param mode: of a ``.npy`` file: ``"c"``, ``"r"`` or ``"r+"``, as for :meth:`from_file`
        :raises InvalidError: it is neither, or holds objects
        """
        return _files.load(self.empty, file, mode, progress)
