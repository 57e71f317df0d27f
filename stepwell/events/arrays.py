"""Tensors from and to Python and NumPy values. NumPy is needed only by `to_numpy`, and is imported there."""

import array
import math
import struct
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from stepwell.events.guards import ITEM_BYTES, RefusalError, check_tensor
from stepwell.events.model import Tensor
from stepwell.exceptions import EncodeError, MissingPartError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CODES = {"float32": "f", "float64": "d", "int32": "i", "int64": "q", "uint8": "B", "bool": "?"}
_LITTLE_ENDIAN = sys.byteorder == "little"
_FLOAT64_UNPACKERS = tuple(struct.Struct(f"<{count}d").unpack for count in range(65))


def tensor(name: str, values: object, dtype: str | None = None, shape: tuple[int, ...] | None = None) -> Tensor:
    """A tensor from numbers.

    Args:
        name: what it is, e.g. ``qpos``.
        values: a number, nested lists or tuples of numbers, raw bytes (C order, little-endian; with dtype and shape),
        or
            anything with NumPy's ``dtype``, ``shape`` and ``tobytes``.
        dtype: name of the element type; where left out, an array's own, else ``float64``.
        shape: lengths of the axes; where left out, that of ``values``.

    Raises:
        EncodeError: an unknown dtype, ragged lists, a shape that does not fit, or a number that the dtype cannot hold
            (an array of another dtype is refused, never cast).
    """
    if hasattr(values, "tobytes") and hasattr(values, "dtype"):
        data, dtype, own_shape = _from_array(name, values, dtype)
    elif isinstance(values, bytes):
        if dtype is None or shape is None:
            raise EncodeError(f"tensor {name}: raw bytes need a dtype and a shape", reason="tensor")
        data, own_shape = values, shape
    else:
        dtype = dtype or "float64"
        flat: list[Any] = []
        own_shape = _flatten(name, values, flat)
        data = _pack(name, flat, dtype)
    made = Tensor(name=name, dtype=dtype, shape=shape if shape is not None else own_shape, data=data)
    try:
        check_tensor(made, f"tensor {name}")
    except RefusalError as error:
        raise EncodeError(str(error), reason=error.reason) from None
    return made


def to_list(value: Tensor) -> Any:
    """The numbers as nested lists; a plain number for a scalar.

    Raises:
        ValueError: the tensor is a reference to an artifact.
    """
    flat = struct.unpack(f"<{math.prod(value.shape)}{_CODES[value.dtype]}", _inline(value))
    return _nest(list(flat), value.shape)


def to_numpy(value: Tensor) -> "NDArray[Any]":
    """The numbers as a read-only NumPy array that shares the tensor's bytes.

    Raises:
        ValueError: the tensor is a reference to an artifact.
        MissingPartError: NumPy is not installed.
    """
    try:
        import numpy as np
    except ImportError as error:
        raise MissingPartError("NumPy is needed here: pip install 'stepwell[arrays]'") from error
    made: NDArray[Any] = np.frombuffer(_inline(value), dtype=np.dtype(value.dtype).newbyteorder("<"))
    return made.reshape(value.shape)


def is_finite(value: Tensor) -> bool:
    """Whether no element is NaN or infinite. References count as finite: their elements are not in the log.

    Fast for the small float64 arrays that actions are: a finite sum has finite parts only. (Finite parts can have an
    infinite sum; then each is looked at.)
    """
    dtype = value.dtype
    data = value.data
    if dtype == "float64":
        count = len(data) >> 3
        numbers = _FLOAT64_UNPACKERS[count](data) if count <= 64 else _floats("d", data)
    elif dtype == "float32":
        numbers = _floats("f", data)
    else:
        return True
    return math.isfinite(sum(numbers)) or all(map(math.isfinite, numbers))


def _floats(code: str, data: bytes) -> Any:
    numbers = array.array(code, data)
    if not _LITTLE_ENDIAN:
        numbers.byteswap()
    return numbers


def _from_array(name: str, values: Any, dtype: str | None) -> tuple[bytes, str, tuple[int, ...]]:
    """Bytes, dtype and shape of a NumPy array (or of what looks like one)."""
    own = str(values.dtype.name)
    if dtype is not None and dtype != own:
        raise EncodeError(f"tensor {name}: the array is {own}, not {dtype}; cast it where it is made", reason="tensor")
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return little.tobytes(), own, tuple(int(length) for length in values.shape)


def _flatten(name: str, values: object, flat: list[Any]) -> tuple[int, ...]:
    """Append all numbers to ``flat`` in C order; the shape."""
    if not isinstance(values, Iterable) or isinstance(values, str | bytes | dict):
        flat.append(values)
        return ()
    shapes = [_flatten(name, item, flat) for item in values]
    if any(shape != shapes[0] for shape in shapes[1:]):
        raise EncodeError(f"tensor {name}: the lists are ragged", reason="tensor")
    return (len(shapes), *(shapes[0] if shapes else ()))


def _pack(name: str, flat: list[Any], dtype: str) -> bytes:
    code = _CODES.get(dtype)
    if code is None:
        raise EncodeError(f"tensor {name}: dtype {dtype!r} is none of {', '.join(ITEM_BYTES)}", reason="tensor")
    allowed = {"?": (bool,), "f": (int, float), "d": (int, float)}.get(code, (int,))
    for number in flat:
        if not isinstance(number, allowed) or (isinstance(number, bool) and code != "?"):
            raise EncodeError(f"tensor {name}: {number!r} is no {dtype}", reason="tensor")
    try:
        return struct.pack(f"<{len(flat)}{code}", *flat)
    except (struct.error, OverflowError) as error:
        raise EncodeError(f"tensor {name}: a number does not fit {dtype}: {error}", reason="tensor") from None


def _inline(value: Tensor) -> bytes:
    if value.uri is not None:
        raise ValueError(f"tensor {value.name} is a reference: fetch {value.uri} from the artifact store")
    return value.data


def _nest(flat: list[Any], shape: tuple[int, ...]) -> Any:
    """Cut a flat list into nested ones."""
    if not shape:
        return flat[0]
    if len(shape) == 1:
        return flat
    stride = len(flat) // shape[0] if shape[0] else 0
    return [_nest(flat[row * stride : (row + 1) * stride], shape[1:]) for row in range(shape[0])]
