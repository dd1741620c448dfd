"""``archive``: writes topics to a table, partitioned by topic, date and hour.

JSON payloads become a typed column. A payload that does not fit becomes a bad record with its reason, in a
second table. Nothing is dropped.
"""

from __future__ import annotations

import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from quiver.errors import InvalidSetting
from quiver.spark.tables.sink import RAW, REASON

PARTITION_BY = ("topic", "date", "hour")
_CORRUPT = "_corrupt"
_SAMPLE = 1000


def archived(messages: DataFrame, schema: StructType | None = None) -> DataFrame:
    """Messages as rows of the table; with a schema, ``value`` is the JSON in it."""
    where = [f.col(name) for name in ("topic", "partition", "offset", "timestamp", "key")]
    when = [
        f.date_format("timestamp", "yyyy-MM-dd").alias("date"),
        f.hour("timestamp").alias("hour"),
    ]
    if schema is None:
        return messages.select(*where, "headers", "value", *when)
    text = f.when(f.expr("is_valid_utf8(cast(value as string))"), f.col("value").cast("string"))
    lenient = StructType([*schema.fields, StructField(_CORRUPT, StringType())])
    parsed = messages.withColumn("_text", text).withColumn(
        "_parsed", f.from_json("_text", lenient, {"columnNameOfCorruptRecord": _CORRUPT})
    )
    reason = (
        f.when(f.col("_text").isNull(), "not UTF-8")
        .when(f.expr("try_parse_json(_text)").isNull(), "not JSON")
        .when(f.expr("left(ltrim(_text), 1)") != "{", "not a JSON object")
        .when(f.col(f"_parsed.{_CORRUPT}").isNotNull(), "does not fit the schema")
    )
    fields = [f.col(f"_parsed.{field.name}") for field in schema.fields]
    return parsed.withColumn(REASON, reason).select(
        *where,
        "headers",
        f.when(f.col(REASON).isNull(), f.struct(*fields)).alias("value"),
        *when,
        f.when(f.col(REASON).isNotNull(), f.col("value")).alias(RAW),
        REASON,
    )


def schema_for(
    spark: SparkSession, sample: DataFrame, checkpoint: str, given: str | None
) -> StructType:
    """The schema of JSON payloads: as given, as in the runs before, or as a sample has it."""
    kept = os.path.join(checkpoint, "payload-schema.json")
    if os.path.exists(kept):
        with open(kept) as file:
            return StructType.fromJson(_json(file.read()))
    schema = _given(given) if given is not None else _inferred(spark, sample)
    os.makedirs(checkpoint, exist_ok=True)
    with open(kept, "w") as file:
        file.write(schema.json())
    return schema


def _given(text: str) -> StructType:
    if os.path.exists(text):
        with open(text) as file:
            text = file.read()
    try:
        return StructType.fromJson(_json(text)) if text.lstrip().startswith("{") else _ddl(text)
    except Exception as error:
        raise InvalidSetting(
            f"{text[:200]!r} is not a schema; write it as 'id BIGINT, name STRING' ({error})"
        ) from error


def _ddl(text: str) -> StructType:
    schema = StructType.fromDDL(text)
    assert isinstance(schema, StructType)
    return schema


def _json(text: str) -> dict[str, object]:
    import json  # noqa: PLC0415

    value: dict[str, object] = json.loads(text)
    return value


def _inferred(spark: SparkSession, sample: DataFrame) -> StructType:
    texts = [
        bytes(row.value).decode(errors="replace")
        for row in sample.select("value").limit(_SAMPLE).collect()
    ]
    schema = spark.read.json(spark.sparkContext.parallelize(texts)).schema
    fields = [field for field in schema.fields if field.name != "_corrupt_record"]
    if not fields:
        raise InvalidSetting(
            "the topic has no JSON objects to infer a schema from: give a schema with --schema"
        )
    return StructType(fields)
