"""``docs/reference/python.md``: the public names of ``quiver``, with the words of their docstrings."""

from __future__ import annotations

import ast
import enum
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator
from typing import Any, is_typeddict

import msgspec
from msgspec import structs

import quiver
from quiver.protocol import Reply, Request

_PAGE = """\
# Python

The module `quiver` holds everything public. This page is generated from the code (`make pages`). Durations
are seconds or text such as `"30s"` (`quiver.Duration`). Sizes are bytes or text such as `"10MB"`
(`quiver.Size`). A `quiver.Position` is an offset, `"earliest"`, `"latest"`, a duration such as `"-1h"`, or a
datetime. See also [the settings of topics and
subscriptions](topic-settings.md), [every command](commands.md) and [Spark](spark.md).
"""
_ERRORS = """
# What calls raise

Every error is a `quiver.QuiverError` with `code`, `message`, `details` and `retryable`; see
[errors](errors.md). All of them are in `quiver.errors`. Those that a call of a client can raise are also in
`quiver`:

"""
FUNCTIONS = ("open", "open_async", "idempotent")
PAIRS = {
    "Client": "AsyncClient",
    "Producer": "AsyncProducer",
    "Reader": "AsyncReader",
    "Transaction": "AsyncTransaction",
}
"""What waits, and what is awaited. They have the same methods, so each is described once."""
INNER = {
    "end",
    "forget",
    "cluster",
    "full",
    "send_encoded",
    "chunks",
    "promise",
    "place",
    "settler",
    "session",
    "hold",
    "tick",
}
"""What the parts of the client library say to each other."""
_SEE = re.compile(r"; see `(?P<name>Async\w+)(\.(?P<method>\w+))?`")
_ASYNC = re.compile(r"\bAsync(Producer|Reader|Transaction|Iterator)\b")


def reference_page() -> str:
    public = [getattr(quiver, name) for name in quiver.__all__]
    classes = [one for one in public if inspect.isclass(one) and one.__name__ not in PAIRS.values()]
    errors = [one for one in classes if issubclass(one, quiver.QuiverError)]
    first = [one for one in classes if one.__name__ in PAIRS]
    others = [one for one in classes if one not in first and one not in errors]
    return "".join(
        [
            _PAGE,
            *(_function(getattr(quiver, name), f"quiver.{name}") for name in FUNCTIONS),
            *(_class(one, f"quiver.{one.__name__}") for one in first),
            "\n# What calls take and return\n",
            *(_class(one, f"quiver.{one.__name__}") for one in others),
            _ERRORS,
            textwrap.fill(", ".join(f"`{one.__name__}`" for one in errors), 110) + ".\n",
        ]
    )


# ------------------------------------------------------------------ one of them


def _function(function: Any, name: str) -> str:
    return f"\n## `{name}`\n\n{_call(name, function)}\n\n{_words(function)}\n"


def _class(one: type, name: str) -> str:
    lines = ["", f"## `{name}`", ""]
    words = _words(one) if one.__doc__ and not one.__doc__.startswith(f"{one.__name__}(") else ""
    if words:
        lines += [words, ""]
    twin = PAIRS.get(one.__name__)
    if twin is not None:
        lines += [f"`quiver.{twin}` has the same methods, awaited.", ""]
    if one is quiver.Client:
        lines += [_call(name, one), ""]
    lines += _values(one)
    for property_name, words in _properties(one):
        lines += [f"- `{property_name}`{': ' if words else ''}{words}", ""]
    for method_name, method in _methods(one):
        lines += [f"- {_inline_call(method_name, method)}", ""]
        lines += [textwrap.indent(_words(method), "  "), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _values(one: type) -> list[str]:
    """Fields of a struct, or the members of an enumeration."""
    docs = _docs_of_fields(one) | _descriptions(one)
    if issubclass(one, enum.Enum):
        rows = [f"| `{each.value}` | {docs.get(each.name, '')} |" for each in one]
        return ["| value | |", "| --- | --- |", *rows, ""]
    if is_typeddict(one):
        rows = [
            f"| `{name}` | `{_cell(type_)}` | {docs.get(name, '')} |"
            for name, (type_, _) in _fields(one).items()
        ]
        return ["| field | type | |", "| --- | --- | --- |", *rows, ""]
    if not issubclass(one, msgspec.Struct):
        return []
    annotations = _fields(one)
    rows = [
        f"| `{each.name}` | `{_cell(annotations[each.name][0])}` | {_default(each)} "
        f"| {docs.get(each.name, '')} |"
        for each in msgspec.structs.fields(one)
        if each.name in annotations
    ]
    return ["| field | type | default | |", "| --- | --- | --- | --- |", *rows, ""] if rows else []


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.default is not msgspec.NODEFAULT:
        return f"`{_cell(str(field.default))}`" if field.default != "" else '`""`'
    return "`{}`" if field.default_factory is dict else "" if field.required else "empty"


def _fields(one: type) -> dict[str, tuple[str, str]]:
    """What is public of a value: by name, the type as it is written, and in which module."""
    return {
        name: (_bare(getattr(annotation, "__forward_arg__", str(annotation))), base.__module__)
        for base in reversed(one.__mro__)
        for name, annotation in inspect.get_annotations(base).items()
        if not name.startswith("_") and name not in INNER and base not in (Request, Reply)
    }


def _docs_of_fields(one: type) -> dict[str, str]:
    """The string that follows a field is what it means."""
    found: dict[str, str] = {}
    for base in reversed(one.__mro__):
        if not base.__module__.startswith("quiver."):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body  # type: ignore[attr-defined]
        for field, after in itertools.pairwise(body):
            name = _assigned(field)
            if name and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                found[name] = _cell(" ".join(str(after.value.value).split()).replace("``", "`"))
    return found


def _descriptions(one: type) -> dict[str, str]:
    """What the annotation of a setting says that it means."""
    if not issubclass(one, msgspec.Struct):
        return {}
    metas = {each.name: getattr(each.type, "__metadata__", ()) for each in structs.fields(one)}
    return {name: _cell(meta[-1].description or "") for name, meta in metas.items() if meta}


def _bare(annotation: str) -> str:
    """The type of a field, without what ``Annotated`` adds to it."""
    if "Annotated[" not in annotation:
        return annotation
    return ast.unparse(_Bare().visit(ast.parse(annotation, mode="eval").body))


class _Bare(ast.NodeTransformer):
    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if isinstance(node.slice, ast.Tuple) and ast.unparse(node.value) == "Annotated":
            visited: ast.AST = self.visit(node.slice.elts[0])
            return visited
        return self.generic_visit(node)


def _assigned(statement: ast.stmt) -> str | None:
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return statement.target.id
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    return None


def _properties(one: type) -> Iterator[tuple[str, str]]:
    for name, value in inspect.getmembers(one, lambda member: isinstance(member, property)):
        if not name.startswith("_") and name not in INNER:
            yield name, " ".join(_words(value).split())


def _methods(one: type) -> Iterator[tuple[str, Any]]:
    """Public methods with a docstring, in the order of their names."""
    for name, value in inspect.getmembers(one, inspect.isfunction):
        if not name.startswith("_") and name not in INNER and value.__doc__:
            yield name, value


# ------------------------------------------------------------------ calls and words


def _call(name: str, function: Any) -> str:
    return f"```\n{_wrapped(name, function)}\n```"


def _inline_call(name: str, function: Any) -> str:
    return f"`{_signature(name, function)}`"


def _signature(name: str, function: Any) -> str:
    signature = inspect.signature(function)
    parts: list[str] = []
    is_keyword = False
    for one in signature.parameters.values():
        if one.name == "self":
            continue
        if one.kind is one.KEYWORD_ONLY and not is_keyword:
            parts.append("*")
        is_keyword = one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL) or is_keyword
        stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        default = "" if one.default is one.empty else f" = {_shown(one.default)}"
        parts.append(f"{stars}{one.name}: {one.annotation}{default}")
    answer = _ASYNC.sub(r"\1", str(signature.return_annotation))
    ending = "" if inspect.isclass(function) else f" -> {answer}"
    return f"{name}({', '.join(parts)}){ending}"


def _shown(default: Any) -> str:
    """A default; of a function there is nothing to show."""
    return "…" if inspect.isfunction(default) else repr(default)


def _wrapped(name: str, function: Any) -> str:
    text = _signature(name, function)
    return (
        text if len(text) <= 100 else "\n".join(textwrap.wrap(text, 100, subsequent_indent="    "))
    )


def _words(one: Any) -> str:
    text = (inspect.getdoc(one) or "").replace("``", "`")
    found = _SEE.search(text)
    if found is None:
        return text
    twin = getattr(quiver, found["name"])  # what waits says only: see what is awaited
    return _words(getattr(twin, found["method"]) if found["method"] else twin)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
