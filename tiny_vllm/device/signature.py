"""The check of what a launch passes against what the kernel declares.

CUDA checks nothing here: a float64 array for a `float*`, a view whose strides are ignored and a Python float, which
CuPy passes as 8 bytes, all run and give wrong numbers. Both devices check by this module, so both refuse alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np

from tiny_vllm.device.declaration import Parameter, kernel_names, parse_parameters

__all__ = ["Parameter", "Signature", "check_arguments", "kernel_names", "parse_parameters"]

Check = Callable[[Any, Sequence[Any]], Any]  # (value, all values) -> what is passed on


class Signature:
    """The check of one kernel's arguments, made once and called at each launch."""

    def __init__(self, kernel: str, parameters: Sequence[Parameter], array_type: type = np.ndarray) -> None:
        """array_type: what the device's arrays are, numpy.ndarray or cupy.ndarray."""
        self.kernel, self.parameters = kernel, tuple(parameters)
        self._checks = [self._checker(parameter, array_type) for parameter in self.parameters]

    def check(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """The arguments as they are to be passed: arrays as they are, scalars in the exact NumPy type.

        Raises TypeError naming the kernel, the argument, what it got and what it wants.
        """
        if len(args) != len(self._checks):
            wanted = ", ".join(map(str, self.parameters)) or "none"
            raise TypeError(f"{self.kernel}: got {len(args)} arguments, wants {len(self._checks)}: {wanted}")
        return tuple([check(value, args) for check, value in zip(self._checks, args, strict=True)])

    def _checker(self, parameter: Parameter, array_type: type) -> Check:
        where = f"{self.kernel}: argument {parameter.name} ({parameter})"
        if parameter.pointer:
            stride = _position(self.parameters, parameter.name + "_stride")
            return _array_check(where, parameter, array_type, stride)
        if parameter.dtype is None:
            return _any_value_check(where)
        if parameter.dtype.kind in "iu":
            return _integer_check(where, parameter.dtype)
        return _bool_check(where) if parameter.dtype.kind == "b" else _float_check(where, parameter.dtype)


def check_arguments(kernel: str, parameters: Sequence[Parameter], args: Sequence[Any]) -> tuple[Any, ...]:
    """Signature(...).check(args) for NumPy arrays, the signature made once for the same parameters."""
    return _signature(kernel, tuple(parameters)).check(args)


@lru_cache(maxsize=256)
def _signature(kernel: str, parameters: tuple[Parameter, ...]) -> Signature:
    return Signature(kernel, parameters)


def _position(parameters: Sequence[Parameter], name: str) -> int | None:
    return next((index for index, each in enumerate(parameters) if each.name == name), None)


def _array_check(where: str, parameter: Parameter, array_type: type[Any], stride: int | None) -> Check:
    wanted = parameter.dtype
    written = not parameter.const

    def explain(array: Any, args: Sequence[Any]) -> Any:
        """The slow way: a view that is allowed, or the error."""
        if not isinstance(array, array_type):
            kind = "any type" if wanted is None else str(wanted)
            raise TypeError(f"{where}: got {_described(array)}, wanted a device array of {kind}")
        if wanted is not None and array.dtype != wanted:
            raise TypeError(f"{where}: got an array of {array.dtype}, wanted {wanted}; convert it with .astype")
        if written and isinstance(array, np.ndarray) and not array.flags.writeable:
            raise TypeError(f"{where}: got a read-only array; declare the parameter const if the kernel only reads it")
        if not array.flags.c_contiguous:
            _check_view(where, parameter, array, None if stride is None else args[stride])
        return array

    if array_type is np.ndarray and written:

        def check_written(array: Any, args: Sequence[Any]) -> Any:
            if type(array) is array_type and (wanted is None or array.dtype == wanted):
                flags = array.flags
                if flags.c_contiguous and flags.writeable:
                    return array
            return explain(array, args)

        return check_written

    def check(array: Any, args: Sequence[Any]) -> Any:
        if type(array) is array_type and (wanted is None or array.dtype == wanted) and array.flags.c_contiguous:
            return array
        return explain(array, args)

    return check


def _check_view(where: str, parameter: Parameter, array: Any, row_stride: Any) -> None:
    """A view is allowed when its rows are contiguous and the kernel is told how far apart they lie."""
    layout = f"{where}: got a non-contiguous view of shape {array.shape} and strides {array.strides} in bytes, wanted "
    if row_stride is None:
        raise TypeError(f"{layout}a contiguous array (the kernel has no {parameter.name}_stride); copy it first")
    if array.ndim < 2 or not array[0].flags.c_contiguous:
        raise TypeError(f"{layout}rows that are contiguous; copy it first")
    elements = array.strides[0] // array.itemsize
    if elements != row_stride or elements * array.itemsize != array.strides[0]:
        raise TypeError(f"{where}: its rows are {elements} elements apart, but {parameter.name}_stride is {row_stride}")


def _integer_check(where: str, dtype: np.dtype) -> Check:
    exact, limits = dtype.type, np.iinfo(dtype)
    low, high = int(limits.min), int(limits.max)

    def check(value: Any, args: Sequence[Any]) -> Any:
        if type(value) is int:
            if low <= value <= high:
                return exact(value)
            raise TypeError(f"{where}: got {value}, wanted {low} to {high}")
        if type(value) is exact:
            return value
        raise TypeError(f"{where}: got {_described(value)}, wanted an int or numpy.{dtype.name}; convert with int()")

    return check


def _float_check(where: str, dtype: np.dtype) -> Check:
    exact, largest = dtype.type, float(ml_dtypes.finfo(dtype).max)

    def check(value: Any, args: Sequence[Any]) -> Any:
        if type(value) is exact:
            return value
        if isinstance(value, float) or type(value) is int:
            if -largest <= value <= largest or value - value != 0:  # finite and in range, or inf or NaN as they are
                return exact(value)
            raise TypeError(f"{where}: got {value}, wanted at most {largest:g} either way")
        raise TypeError(f"{where}: got {_described(value)}, wanted a float or numpy.{dtype.name}; convert with float()")

    return check


def _bool_check(where: str) -> Check:
    def check(value: Any, args: Sequence[Any]) -> Any:
        if isinstance(value, (bool, np.bool_)):
            return np.bool_(value)
        raise TypeError(f"{where}: got {_described(value)}, wanted a bool")

    return check


def _any_value_check(where: str) -> Check:
    def check(value: Any, args: Sequence[Any]) -> Any:
        if isinstance(value, (np.generic, np.ndarray)):
            return value
        raise TypeError(f"{where}: got {_described(value)}, wanted a NumPy scalar, which says how wide it is")

    return check


def _described(value: Any) -> str:
    """What somebody passed, in a few words."""
    if isinstance(value, np.generic):
        return f"numpy.{value.dtype.name} {value}"
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        home = "a NumPy array in host memory" if isinstance(value, np.ndarray) else "an array"
        return f"{home} of {value.dtype}, shape {value.shape}"
    text = repr(value)
    return f"{type(value).__name__} {text}" if len(text) <= 40 else type(value).__name__
