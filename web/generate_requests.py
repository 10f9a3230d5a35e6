"""Write the types of the page's requests, `src/requests.ts`, from the schemas that the server validates them with.

python web/generate_requests.py > web/src/requests.ts
"""

import json
from typing import Any

from pydantic.json_schema import models_json_schema

from regard.explorer import schemas

REQUESTS = (
    schemas.TraceRequest,
    schemas.AttributionRequest,
    schemas.HeadsRequest,
    schemas.CorpusRequest,
    schemas.MetricsRequest,
    schemas.NeighborsRequest,
)
LIMITS = ("MAX_TEXT", "MAX_BEAM", "MAX_ROWS")
"""The limits that the page also applies."""


def write_module() -> str:
    """Return the module. A field with a default is optional."""
    _, document = models_json_schema([(request, "validation") for request in REQUESTS])
    limits = [f"export const {name} = {getattr(schemas, name)};" for name in LIMITS]
    interfaces = [_write_interface(name, schema) for name, schema in document["$defs"].items()]
    head = "/** Requests to the server, generated from src/regard/explorer/schemas.py by `make web`. Do not edit. */"
    return "\n".join([head, "", *limits, "", "\n\n".join(interfaces), ""])


def _write_interface(name: str, schema: dict[str, Any]) -> str:
    required = schema.get("required", ())
    fields = [
        f"  {field}{'' if field in required else '?'}: {_write_type(of)};" for field, of in schema["properties"].items()
    ]
    return "\n".join([f"/** {schema['description']} */", f"export interface {name} {{", *fields, "}"])


def _write_type(schema: dict[str, Any]) -> str:
    match schema:
        case {"$ref": str(path)}:
            return path.rpartition("/")[2]
        case {"anyOf": list(members)}:
            return " | ".join(map(_write_type, members))
        case {"enum": list(values)}:
            return " | ".join(map(json.dumps, values))
        case {"type": "array", "items": dict(items)}:
            element = _write_type(items)
            return f"readonly ({element})[]" if " | " in element else f"readonly {element}[]"
        case {"type": "object"}:
            return "Record<string, unknown>"
        case {"type": "integer"}:
            return "number"
    return str(schema["type"])


if __name__ == "__main__":
    print(write_module(), end="")
