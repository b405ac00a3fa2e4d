"""The fields that a server's tasks have, as data preparation imports them; names only."""

from nemo_gym.environment.task_data import (
    LEGACY_METADATA_KEY,
    RESERVED_ROW_KEYS,
    TASK_DATA_EXPORT_NAME,
    TASK_DATA_MODULE_NAME,
    TASK_DATA_ROW_KEY,
    TaskDataSchemaError,
    TaskDataValidationReport,
    TaskDataValidator,
    find_server_dir,
    legacy_metadata_fields,
    load_task_data_schema,
    normalize_task_fields,
    validate_jsonl_rows,
)

__all__ = [
    "LEGACY_METADATA_KEY",
    "RESERVED_ROW_KEYS",
    "TASK_DATA_EXPORT_NAME",
    "TASK_DATA_MODULE_NAME",
    "TASK_DATA_ROW_KEY",
    "TaskDataSchemaError",
    "TaskDataValidationReport",
    "TaskDataValidator",
    "find_server_dir",
    "legacy_metadata_fields",
    "load_task_data_schema",
    "normalize_task_fields",
    "validate_jsonl_rows",
]
