"""Tensors from and to Python and NumPy values."""

import math
import struct
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from stepwell.events import arrays
from stepwell.events.arrays import is_finite, tensor, to_list, to_numpy
from stepwell.events.guards import ITEM_BYTES
from stepwell.events.model import Tensor
from stepwell.exceptions import EncodeError, MissingPartError

dtypes = st.sampled_from(list(ITEM_BYTES))
REFERENCE = Tensor(name="f", dtype="uint8", shape=(2,), data=b"", uri="s3://f", sha256=bytes(32))


@given(dtypes.flatmap(lambda dtype: npst.arrays(dtype, npst.array_shapes(min_dims=0, min_side=0, max_side=4))))
@settings(deadline=None)
def test_numpy_and_lists_agree(values: Any) -> None:
    made = tensor("x", values)
    assert (made.dtype, made.shape) == (values.dtype.name, values.shape)
    np.testing.assert_array_equal(to_numpy(made), values)
    assert to_numpy(made).tobytes() == values.tobytes()
    assert repr(to_list(made)) == repr(values.tolist())
    assert tensor("x", to_list(made), made.dtype, made.shape) == made
    assert tensor("x", made.data, made.dtype, made.shape) == made


def test_layout_is_c_order_and_little_endian() -> None:
    wanted = tensor("x", [[1.0, 2.0], [3.0, 4.0]])
    assert wanted.data == struct.pack("<4d", 1, 2, 3, 4)
    assert tensor("x", np.asfortranarray([[1.0, 2.0], [3.0, 4.0]])) == wanted
    assert tensor("x", np.array([[1.0, 2.0], [3.0, 4.0]], dtype=">f8")) == wanted
    assert tensor("x", np.arange(1.0, 9.0)[::2]).data == struct.pack("<4d", 1, 3, 5, 7)
    assert not to_numpy(wanted).flags.writeable


def test_scalars_and_defaults() -> None:
    assert to_list(tensor("x", 1.5)) == 1.5
    assert tensor("x", 3, "int32").data == b"\x03\x00\x00\x00"
    assert tensor("x", [1, 2]).dtype == "float64"
    assert tensor("x", (True, False), "bool").data == b"\x01\x00"
    assert tensor("x", [1, 2, 3, 4], "uint8", (2, 2)).shape == (2, 2)
    assert to_list(tensor("x", [[], []])) == [[], []]


@pytest.mark.parametrize(
    ("values", "dtype", "shape"),
    [
        ([[1.0], [1.0, 2.0]], None, None),
        ([1.0, [2.0]], None, None),
        ([1.5], "int32", None),
        ([True], "float64", None),
        ([1], "bool", None),
        ([256], "uint8", None),
        ([-1], "uint8", None),
        ([2**63], "int64", None),
        ([1e300], "float32", None),
        (["1"], None, None),
        ("text", None, None),
        ({"a": 1}, None, None),
        ([None], None, None),
        ([1.0], "float16", None),
        ([1.0], None, (2,)),
        (b"\x00", None, (1,)),
        (b"\x00", "uint8", None),
        (b"\x00", "uint8", (2,)),
        (np.zeros(2, np.float32), "float64", None),
        (np.zeros(2, np.complex128), None, None),
        (np.array(["a"]), None, None),
        (np.array([None]), None, None),
    ],
)
def test_nothing_is_cast(values: Any, dtype: str | None, shape: tuple[int, ...] | None) -> None:
    with pytest.raises(EncodeError, match=r"^tensor action: ") as caught:
        tensor("action", values, dtype, shape)
    assert caught.value.reason == "tensor"


@given(st.lists(st.floats(width=32), max_size=80), st.sampled_from(["float32", "float64"]))
@settings(deadline=None)
def test_is_finite(values: list[float], dtype: str) -> None:
    assert is_finite(tensor("x", values, dtype)) == all(map(math.isfinite, values))


def test_is_finite_is_not_fooled_by_sums() -> None:
    huge = sys.float_info.max
    assert is_finite(tensor("x", [huge, huge]))
    assert is_finite(tensor("x", [huge] * 100))
    assert not is_finite(tensor("x", [math.inf, -math.inf]))
    assert not is_finite(tensor("x", [0.0] * 70 + [math.nan]))


def test_is_finite_of_integers_and_references() -> None:
    assert is_finite(tensor("x", [1, 2], "int64"))
    assert is_finite(REFERENCE)


def test_references_hold_no_numbers() -> None:
    for read in (to_list, to_numpy):
        with pytest.raises(ValueError, match="s3://f"):
            read(REFERENCE)


def test_big_endian_machines_swap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "_LITTLE_ENDIAN", False)
    swapped = Tensor(name="x", dtype="float32", shape=(1,), data=struct.pack(">f", math.inf))
    assert not is_finite(swapped)


def test_numpy_is_imported_only_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import sys, stepwell.events.arrays as a; a.is_finite(a.tensor('x', [1.0])); sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    made = tensor("x", [1.0])
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(MissingPartError, match=r"stepwell\[arrays\]"):
        to_numpy(made)
