"""The rules of the architecture, checked against the source."""

import ast
import subprocess
import sys
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path

import pytest

import regard
from regard.runs.folder import RunFolder
from tests_shared import SMALL

SOURCE = Path(regard.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

LAYERS = [
    {"operating_system", "urls", "version"},
    {"formatting", "regular_files"},
    {"errors", "quantities"},
    {"yaml_reader"},
    {"overrides"},
    {"config"},
    {"registry"},
    {"arguments"},
    {"ops"},
    {"attention"},
    {"recurrent"},
    {"models"},
    {"data"},
    {"decoding"},
    {"evaluation"},
    {"runs"},
    {"training"},
    {"inspection"},
    {"export"},
    {"engines"},
    {"api"},
    {"explorer", "cluster"},
    {"serving"},
    {"cli"},
    {"__init__", "__main__"},
    {"course"},
]
"""A package imports from the layers before its own, and from itself. `import regard` is an import of `__init__`."""


@cache
def parse_text(text: str) -> ast.Module:
    return ast.parse(text)


def parse(path: Path) -> ast.Module:
    return parse_text(path.read_text("utf-8"))


def package(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def layer(name: str) -> int:
    return next(index for index, packages in enumerate(LAYERS) if name in packages)


def imported_packages(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(parse(path)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "regard":
            names = [f"regard.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names = [node.module or ""]
        for name in names:
            root, _, rest = name.partition(".")
            if root == "regard":
                first = rest.partition(".")[0]
                found.add(first if first in set().union(*LAYERS) else "__init__")
    return found


def test_imports_go_one_way() -> None:
    assert not [
        f"{path} is in '{package(path)}' and imports from '{other}'"
        for path in FILES
        for other in imported_packages(path) - {package(path)}
        if layer(other) >= layer(package(path))
    ]


def test_the_import_test_detects_every_form_of_import(tmp_path: Path) -> None:
    path = tmp_path / "scores.py"
    path.write_text("from regard.training import loop\nfrom regard import cli\nimport regard.data.lines\n")
    assert imported_packages(path) == {"training", "cli", "data"}
    for statement in (
        "import regard",
        "import regard as package",
        "from regard import Model",
        "def f():\n import regard",
    ):
        path.write_text(statement)
        assert imported_packages(path) == {"__init__"}


MODULES = {".".join(("regard", *path.relative_to(SOURCE).with_suffix("").parts)): path for path in FILES}
MODULES = {name.removesuffix(".__init__"): path for name, path in MODULES.items()}


def imported_modules(text: str) -> set[str]:
    """The modules of the package that a module imports anywhere: also in functions, and for types only."""
    found = set()
    for node in ast.walk(parse_text(text)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            found.add(name if name in MODULES else name.rpartition(".")[0])
    return found & set(MODULES)


def find_circle(imports: Mapping[str, Collection[str]]) -> list[str]:
    """Return modules each of which imports the next, and the last the first; empty if there are none."""
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> list[str]:
        if module in path:
            return path[path.index(module) :]
        if module in done:
            return []
        circle = next((found for other in imports[module] if (found := visit(other, [*path, module]))), [])
        done.add(module)
        return circle

    return next((found for module in imports if (found := visit(module, []))), [])


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    imports = {
        name: sorted(imported_modules(path.read_text("utf-8")) - {name, "regard"}) for name, path in MODULES.items()
    }
    circle = find_circle(imports)
    assert not circle, " → ".join([*circle, circle[0]])


def test_the_test_of_circles_sees_every_form_of_import() -> None:
    text = "from regard.training import loop\nif TYPE_CHECKING:\n from regard.errors import DataError\n"
    text += "def f():\n import regard.data.sampler\n"
    assert imported_modules(text) == {"regard.training.loop", "regard.errors", "regard.data.sampler"}
    assert find_circle({"a": ["b"], "b": ["c"], "c": ["b"]}) == ["b", "c"]
    assert find_circle({"a": ["b", "c"], "b": ["c"], "c": []}) == []


def test_no_name_of_a_file_is_vague() -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "misc", "base", "core"}
    assert not [path for path in FILES if path.stem in vague]


RUNS_CODE = {
    "pickle",
    "torch.load",
    "joblib",
    "dill",
    "eval",
    "exec",
    "yaml.load",
    "yaml.unsafe_load",
    "np.load",
    "marshal",
}
"""What can run code that stands in a file; `np.load` and `torch.load` can, unless they are told not to."""

SAFE_OPTIONS = {"np.load": "allow_pickle=False", "torch.load": "weights_only=True"}


def code_runners(path: Path) -> set[str]:
    """Where a module imports or calls one of them."""
    found = set()
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.name for alias in node.names} | {getattr(node, "module", None) or ""}
        elif isinstance(node, ast.Call):
            name, options = ast.unparse(node.func), {ast.unparse(option) for option in node.keywords}
            found |= set() if SAFE_OPTIONS.get(name) in options else {name}
    return found & RUNS_CODE


def test_nothing_that_is_read_can_run_code() -> None:
    assert not {path: found for path in FILES if (found := code_runners(path))}


def test_the_test_of_code_that_is_run_sees_it(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.py"
    path.write_text("import pickle\nnp.load(a, allow_pickle=True)\nnp.load(a, allow_pickle=False)\ntorch.load(a)\n")
    assert code_runners(path) == {"pickle", "np.load", "torch.load"}
    path.write_text("np.load(a, allow_pickle=False)\ntorch.load(a, weights_only=True)\n")
    assert code_runners(path) == set()
    path.write_text("torch.load(a, weights_only=False)\nnp.load(a, weights_only=True)\n")
    assert code_runners(path) == {"np.load", "torch.load"}


def test_json_that_is_written_is_valid() -> None:
    """By default `json` writes NaN and Infinity, which no other parser reads: use `formatting.to_json`."""
    assert not [
        f"{path}:{node.lineno}"
        for path in FILES
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in {"json.dumps", "json.dump"}
        and not any(word.arg == "allow_nan" and ast.unparse(word.value) == "False" for word in node.keywords)
    ]


MAY_OPEN_FILES = {
    "operating_system.py", "regular_files.py", "data/lines.py",
    "config.py", "inspection/trace/page.py", "explorer/gallery.py", "registry.py",
    "course/lesson_7_transformer.py",
}  # fmt: skip
"""The modules that open files themselves: pipes of the shell, files of the package, and the source of plugins,
and the pairs of the reader of a lesson."""


def test_files_are_opened_by_one_function_which_rejects_special_files() -> None:
    """Opening a FIFO blocks, and a device may have no end: use `regular_files`."""
    assert not [
        f"{path}:{node.lineno}"
        for path in FILES
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and (
            node.func.attr in {"read_text", "read_bytes"}
            or (node.func.attr == "open" and "'rb'" in map(ast.unparse, node.args))
        )
        and path.relative_to(SOURCE).as_posix() not in MAY_OPEN_FILES
    ]


def test_only_one_module_asks_for_the_operating_system() -> None:
    """`make check` also checks the types for Windows and macOS, which finds names that they do not have."""
    asked = {"sys.platform", "os.name", "platform.system", "os.uname", "fcntl"}
    assert [
        path.name
        for path in FILES
        if asked & {ast.unparse(node) for node in ast.walk(parse(path)) if isinstance(node, ast.Attribute | ast.Name)}
    ] == ["operating_system.py"]


def test_public_names_are_sorted_and_all_there() -> None:
    def order(name: str) -> tuple[int, str]:
        return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)

    assert regard.__all__ == sorted(regard.__all__, key=order)
    assert set(regard.__all__) == set(regard._MODULES)
    for name in regard.__all__:
        assert getattr(regard, name) is not None


@pytest.mark.parametrize(
    "statement",
    [
        "import regard",
        "import regard.cli.train, regard.cli.predict, regard.cli.evaluate, regard.cli.look",
        "import regard.cli.presets, regard.cli.mechanisms, regard.cli.data, regard.cli.compare, regard.cli.sweep",
        "from regard.runs.settings import RunSettings",
        "import regard; regard.mechanisms()",
    ],
)
def test_settings_and_help_need_no_torch(statement: str) -> None:
    code = f"{statement}\nimport sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "unused"),
    [
        (
            f"import regard; regard.train('dates', {SMALL!r}, out=PATH + '-again', quiet=True)",
            {"torch._dynamo", "sympy", "matplotlib", "PIL", "IPython"},
        ),
        (
            "import regard; regard.load(PATH).predict('x')",
            {"torch._dynamo", "sympy", "sacrebleu", "matplotlib", "rapidfuzz", "PIL", "IPython"},
        ),
    ],
)
def test_modules_that_take_long_to_import_are_imported_only_if_they_are_used(
    statement: str, unused: set[str], small_run: RunFolder
) -> None:
    """Importing the compiler of torch takes as long as importing the rest of torch."""
    code = (
        f"{statement.replace('PATH', repr(str(small_run.path)))}\nimport sys; print(*{unused!r} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []
