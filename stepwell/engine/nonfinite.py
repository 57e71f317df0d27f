"""Whether a fact holds NaN or infinity."""

from collections.abc import Iterable
from struct import iter_unpack
from typing import Final

from stepwell.events.model import Tensor

_FORMATS: Final = {"float64": ("<d", 8), "float32": ("<f", 4), "float16": ("<e", 2)}


def has_nonfinite(tensors: Iterable[Tensor]) -> bool:
    """Whether any element is NaN or infinite. Integers never are; bytes that fit no whole element are not read."""
    for tensor in tensors:
        dtype = tensor.dtype
        if dtype == "float64":
            top = tensor.data[7::8]
        elif dtype == "float32":
            top = tensor.data[3::4]
        elif dtype == "float16":
            top = tensor.data[1::2]
        else:
            continue
        # An exponent of all ones needs 0x7f or 0xff in the top byte (0x7c to 0x7f, 0xfc to 0xff in a float16), which
        # finite numbers of a usual size never have; so the elements themselves are looked at only then.
        if (b"\x7f" in top or b"\xff" in top or dtype == "float16") and _any_nonfinite(tensor.data, *_FORMATS[dtype]):
            return True
    return False


def _any_nonfinite(data: bytes, code: str, size: int) -> bool:
    whole = memoryview(data)[: len(data) // size * size]
    return any(value - value != 0.0 for (value,) in iter_unpack(code, whole))
