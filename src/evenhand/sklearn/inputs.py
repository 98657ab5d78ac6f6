"""What users pass: tables of pandas and polars, and the clients and groups of samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.utils.validation import validate_data

from evenhand.data.tables.columns import statistics
from evenhand.errors import brief, require, unknown

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Labels = NDArray[Any]  # (N,) one label per sample
TEXTS = (nw.String, nw.Categorical, nw.Enum)
ENCODE = "encode it first, for example with a OneHotEncoder in a Pipeline"
NO_NUMBER = "could not convert string to float: "  # NumPy's message


class Scale(NamedTuple):
    """Means and standard deviations over the samples of all clients."""

    mean: Floats
    std: Floats  # 1 where all values are equal

    @classmethod
    def of(cls, values: Floats, offsets: Ints, names: Sequence[str]) -> Scale:
        """Compute them from two rounds of sums over clients; rows are sorted by client."""
        found = [statistics(column, offsets) for column in values.T]
        mean = np.array([one.mean for one in found])
        std = np.array([one.std for one in found])
        if not np.isfinite(std).all():
            name = names[int(np.flatnonzero(~np.isfinite(std))[0])]
            raise ValueError(f"{name} has numbers too large to add up; use another unit")
        # values that are all equal have a mean that differs from them by rounding
        rounding = len(values) * np.finfo(np.float64).eps * np.abs(mean)
        return cls(mean, np.where(std <= rounding, 1.0, std))


def frame_of(X: Any) -> nw.DataFrame[Any] | None:
    """Return ``X`` if it is a table of pandas, polars or pyarrow, else None."""
    frame = nw.from_native(X, eager_only=True, pass_through=True)
    return frame if isinstance(frame, nw.DataFrame) else None


def labels_of(what: str, X: Any, given: Any) -> Labels | None:
    """Return the label of each sample: an array, or the column of ``X`` with this name.

    Raises in one line if the number of labels is wrong or one is missing.
    """
    if given is None:
        return None
    if isinstance(given, str):
        frame = frame_of(X)
        require(
            frame is not None,
            "{}={!r} names a column, but X is no table with column names; pass one label per"
            " sample",
            what,
            given,
        )
        assert frame is not None
        if given not in frame.columns:
            raise ValueError(
                unknown(f"column of X for {what}:", given, list(map(str, frame.columns)))
            )
        given = frame.get_column(given)
    # NumPy would turn [1, "a", nan] into three texts
    exact = isinstance(given, list | tuple)
    labels = np.array(given, dtype=object) if exact else np.asarray(given)
    rows = X.shape[0] if hasattr(X, "shape") else len(X)
    require(
        labels.shape == (rows,),
        "{} needs one label for each of {} samples, got shape {}",
        what,
        rows,
        list(labels.shape),
    )
    missing = np.flatnonzero(pd.isna(labels))
    if len(missing):
        raise ValueError(
            f"{what} has a missing value in row {missing[0]}; give it a label, such as 'unknown',"
            " or leave the row out"
        )
    return labels


def coded(labels: Labels) -> tuple[Labels, Ints]:
    """Return the distinct labels in sorted order, and the code of each sample."""
    codes, names = pd.factorize(labels, sort=True)
    return np.asarray(names), codes.astype(np.int64)


def codes_of(labels: Labels, names: Labels) -> Ints:
    """Return the code of each label in ``names``, -1 for one that is not there."""
    return np.asarray(pd.Index(names).get_indexer(pd.Index(labels)), np.int64)


def clients_of(
    names: Labels, order: Ints, offsets: Ints, X: Floats, y: NDArray[Any], groups: Labels | None
) -> list[dict[str, Any]]:
    """Return the arrays of each client, for ``Federation.from_arrays``.

    The rows of client k are ``order[offsets[k] : offsets[k + 1]]``.
    """
    found = []
    for code, name in enumerate(names.tolist()):
        rows = order[offsets[code] : offsets[code + 1]]
        one = {"name": name, "x": X[rows], "y": y[rows]}
        if groups is not None:
            one["group"] = groups[rows].tolist()
        found.append(one)
    return found


def without(X: Any, columns: Iterable[str | None]) -> Any:
    """Return ``X`` without some columns, as far as it is a table that has them."""
    frame = frame_of(X)
    if frame is None:
        return X
    left_out = [name for name in frame.columns if name in set(columns)]
    return frame.drop(left_out).to_native() if left_out else X


def require_numbers(X: Any) -> None:
    """Raise unless every column of a table holds numbers."""
    frame = frame_of(X)
    for name, kind in {} if frame is None else frame.schema.items():
        assert frame is not None
        if kind in TEXTS:
            values = frame.get_column(name).drop_nulls().head(1).to_list()
            such = f", such as {brief(values[0])}" if values else ""
            raise ValueError(f"column {name!r} holds text or categories{such}; {ENCODE}")
        if kind.is_temporal():
            raise ValueError(f"column {name!r} holds {kind}, not numbers; convert it first")


def validated(estimator: Any, X: Any, **options: Any) -> Any:
    """Check and convert data as scikit-learn does, as float64; text is refused in our words."""
    require_numbers(X)
    if options.get("y_numeric") and (y := np.asarray(options["y"])).dtype.kind in "OU":
        texts = [str(value) for value in y.ravel() if isinstance(value, str)]
        require(not texts, "y holds text, such as {!r}; a regression needs numbers", *texts[:1])
    try:
        return validate_data(estimator, X, dtype=np.float64, **options)
    except ValueError as error:
        text = str(error).removeprefix(NO_NUMBER)
        if text == str(error):
            raise
        value = text.removeprefix("np.str_(").removesuffix(")")
        raise ValueError(f"X holds text, such as {value}; {ENCODE}") from error


def table_like(X: Any, columns: Mapping[str, Any]) -> Any:
    """Return a table of the library that ``X`` is from; of pandas if it is no table."""
    frame = frame_of(X)
    if frame is None:
        return pd.DataFrame(columns)
    return nw.from_dict(dict(columns), backend=frame.implementation).to_native()
