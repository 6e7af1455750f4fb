"""``DataFrame.mapInArrow`` without pandas, which PySpark requires for it and never uses there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

ArrowMap = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def map_in_arrow(frame: DataFrame, function: ArrowMap, schema: StructType) -> DataFrame:
    """Return what ``frame.mapInArrow`` returns. With Spark Connect it is that, and needs pandas."""
    session: Any = frame
    try:
        java = session._jdf  # noqa: SLF001 - PySpark has no public way
    except (AttributeError, PySparkException):
        return frame.mapInArrow(function, schema)
    made = UserDefinedFunction(
        function, returnType=schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    )
    column: Any = made(*[frame[name] for name in frame.columns])
    return DataFrame(java.mapInArrow(column._jc, False, None), frame.sparkSession)  # noqa: FBT003, SLF001
