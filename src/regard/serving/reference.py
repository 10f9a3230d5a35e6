"""The reference of the API: an OpenAPI document, and the page `/docs`, which is rendered from it without scripts."""

import html
from collections.abc import Mapping
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from regard.formatting import to_json
from regard.version import __version__

_NOT_OF_FILES: Final = ("q", "format")
"""The fields of a request for a text that a request for a file does not have."""

_REF: Final = "#/components/schemas/"
_ERRORS: Final = {
    400: "The request is not valid, or the languages are not supported.",
    403: "The API key is missing or wrong.",
    405: "The method is not supported.",
    413: "The request is too large.",
    415: "The body is neither JSON nor a form.",
    429: "The key or the address has sent too many requests.",
    503: "The server is busy or stopping. Retry after the time in the header `Retry-After`.",
    504: "The response did not start within the time-out.",
}
ERROR_SCHEMA: Final = {
    "type": "object",
    "properties": {"error": {"type": "string"}},
    "required": ["error"],
}


def describe_body(schema: type[BaseModel], *, file: str | None = None) -> dict[str, Any]:
    """Return what OpenAPI describes of a route whose body has the fields of a schema: JSON, or a form. With the name of
    a field that is a file, the body is a form with it.
    """
    described = schema.model_json_schema(ref_template=f"{_REF}{{model}}")
    described.pop("$defs", None)
    kinds = ["application/json", "application/x-www-form-urlencoded"]
    if file is not None:
        described["properties"] = {
            file: {"type": "string", "format": "binary"},
            **{name: field for name, field in described["properties"].items() if name not in _NOT_OF_FILES},
        }
        described["required"] = [file, *(name for name in described.get("required", ()) if name != "q")]
        kinds = ["multipart/form-data"]
    content = {kind: {"schema": described} for kind in kinds}
    return {"requestBody": {"required": True, "content": content}}


def describe_query(schema: type[BaseModel]) -> dict[str, Any]:
    """Return what OpenAPI describes of a route whose query has the fields of a schema."""
    described = schema.model_json_schema()
    required = described.get("required", ())
    return {
        "parameters": [
            {"name": name, "in": "query", "required": name in required, "schema": field}
            for name, field in described["properties"].items()
        ]
    }


def describe_api(app: FastAPI, schemas: list[type[BaseModel]]) -> dict[str, Any]:
    """Return the OpenAPI document of an application, with the schemas that others refer to."""
    document = get_openapi(title="regard", version=__version__, routes=app.routes, description=_DESCRIPTION)
    found = document.setdefault("components", {}).setdefault("schemas", {})
    for schema in schemas:
        found[schema.__name__] = schema.model_json_schema(ref_template=f"{_REF}{{model}}")
    found["Error"] = ERROR_SCHEMA
    for path in document["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
            for status, text in _ERRORS.items():
                content = {"application/json": {"schema": {"$ref": f"{_REF}Error"}}}
                operation["responses"].setdefault(str(status), {"description": text, "content": content})
    return document


_DESCRIPTION: Final = (
    "The API of LibreTranslate, with word alignments, scores, attention weights and constraints (`regard`), and "
    "endpoints for models that do not translate. Bodies are JSON or forms."
)


def render_reference(document: Mapping[str, Any]) -> str:
    """Return the page of an OpenAPI document."""
    schemas = document["components"]["schemas"]
    sections = [
        _render_operation(path, method, operation, schemas)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    return (
        "<!DOCTYPE html>\n<html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        "<title>API of regard serve</title><link rel=stylesheet href=/translate.css>"
        f"<main class=reference><h1>API</h1><p>{_mark_code(document['info']['description'])} "
        "<a href=/openapi.json>openapi.json</a></p>" + "".join(sections) + "</main></html>"
    )


def _render_operation(path: str, method: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    parts = [f"<h2 id='{html.escape(operation['operationId'])}'><code>{method.upper()} {html.escape(path)}</code></h2>"]
    parts.append(f"<p>{_mark_code(operation.get('description', ''))}</p>")
    body = operation.get("requestBody", {}).get("content", {})
    fields = {each["name"]: (each["schema"], each["required"]) for each in operation.get("parameters", ())}
    for content in body.values():
        schema = content["schema"]
        fields = {
            name: (field, name in schema.get("required", ())) for name, field in schema.get("properties", {}).items()
        }
    if fields:
        rows = "".join(
            f"<tr><td><code>{html.escape(name)}</code><td>{html.escape(_name_type(field, schemas))}"
            f"<td>{'required' if required else _format_default(field)}<td>{_mark_code(field.get('description', ''))}"
            for name, (field, required) in fields.items()
        )
        parts.append(f"<table><tr><th>field<th>type<th>default<th>meaning{rows}</table>")
    if body:
        parts.append(f"<p>Body: {', '.join(f'<code>{kind}</code>' for kind in body)}</p>")
    return f"<section>{''.join(parts)}</section>"


def _name_type(field: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    """Return the type of a field in words."""
    if "anyOf" in field:
        return " or ".join(_name_type(each, schemas) for each in field["anyOf"] if each.get("type") != "null")
    if "$ref" in field:
        properties = schemas[field["$ref"].removeprefix(_REF)]["properties"]
        return "object: " + ", ".join(f"{name} ({_name_type(each, schemas)})" for name, each in properties.items())
    if "enum" in field:
        return " | ".join(map(str, field["enum"]))
    if field.get("format") == "binary":
        return "file"
    if field.get("type") == "array":
        return f"list of {_name_type(field['items'], schemas)}"
    return str(field.get("type", "any"))


def _format_default(field: Mapping[str, Any]) -> str:
    default = field.get("default")
    return "" if default in (None, "") else f"<code>{html.escape(to_json(default))}</code>"


def _mark_code(text: str) -> str:
    """Escape a text, and mark the parts between backquotes as code."""
    parts = html.escape(text).split("`")
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))
