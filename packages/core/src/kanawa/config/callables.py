"""Names for functions and classes in configs: a public `module:attribute`; catalog names are read, never written.

A name must lead back to the same object in another process, so lambdas, closures, partials and
bound methods are refused when they are assigned, not when the config is written.
"""

import functools
import importlib
import importlib.metadata
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kanawa.errors import INTERRUPTIONS, ConfigError, did_you_mean


class CallableNameError(ConfigError):
    """A callable has no name that another process could load, or a name leads nowhere."""


class Catalog:
    """What plugins answer; config can't import them, so their answers are connected here.

    Attributes:
        load: all that is called so in the catalog, or of one kind.
        refusal: why a `module:attribute` must not be imported; empty where it may.
        fillers: which components fill a role, as the end of an error message.
    """

    load: Callable[[str, str], Sequence[Any]] | None = None
    refusal: Callable[[str], str] | None = None
    fillers: Callable[[type], str] | None = None


def connect_catalog(**answers: Callable[..., Any] | None) -> None:
    """Connects answers of the `Catalog` by name; None disconnects one."""
    for name, answer in answers.items():
        setattr(Catalog, name, answer and staticmethod(answer))


@functools.lru_cache(maxsize=4096)
def public_name(obj: Any) -> str:
    """Returns the shortest public `module:attribute` that is this very object.

    The defining module and its parents come first, so that the answer depends as little as possible
    on what else has been imported; then any loaded public module of the same top-level package.
    """
    qualname = _qualname(obj)
    home = getattr(obj, "__module__", None) or ""
    parts = home.split(".")
    for depth in range(1, len(parts) + 1):
        name = ".".join(parts[:depth])
        module = sys.modules.get(name)
        if module is not None and _is_public(name, qualname) and _leads_to(module, qualname, obj):
            return f"{name}:{qualname}"
    # Shortest first, then by name: the text of a config must not depend on the order of imports.
    public = sorted(_elsewhere(obj, home, qualname), key=lambda n: (n.count("."), len(n), n))
    if not public:
        message = (
            f"{home}:{qualname} can't be stored in a config: no public module:attribute is this "
            "object; export it from a public module under its own name"
        )
        raise CallableNameError(message)
    return public[0]


def resolve_callable(name: str) -> Any:
    """Returns the object behind a catalog name or `module:attribute`; raises CallableNameError."""
    meanings = resolve_all(name)
    if len(meanings) > 1:
        places = ", ".join(sorted(map(public_name, meanings)))
        message = f"{name!r} is in the catalog more than once: {places}; write one of these instead"
        raise CallableNameError(message)
    return meanings[0]


def resolve_all(name: str, kind: str = "") -> Sequence[Any]:
    """Returns every object of a catalog name, of one kind if `kind`, or that at `module:attribute`: at least one.

    Where there is nothing at `module:attribute`, the place that a distribution's entry-point group `kanawa_moved` gives
    for it: `"old_package.old_module.Name" = "new_package.new_module:Name"`.
    """
    if ":" not in name:
        if Catalog.load is None:
            message = f"can't resolve {name!r}: no catalog is connected; write module:attribute"
            raise CallableNameError(message)
        return Catalog.load(name, kind)
    try:
        return [_imported(name)]
    except CallableNameError:
        new = _moved(name)
        if new is None:
            raise
        return [_imported(new)]


def _moved(name: str) -> str | None:
    """Returns the present place of what was once at `module:attribute`, or inside of what was; None for all else."""
    dotted = name.replace(":", ".")
    for point in importlib.metadata.entry_points(group="kanawa_moved"):
        if dotted == point.name or dotted.startswith(point.name + "."):
            return point.value + dotted.removeprefix(point.name)
    return None


def _imported(name: str) -> Any:
    module_name, _, qualname = name.partition(":")
    refusal = Catalog.refusal(name) if Catalog.refusal is not None else ""
    if refusal:
        message = f"{name!r} is not imported: {refusal}"
        raise CallableNameError(message)
    if "<locals>" in qualname:
        message = f"can't load {name!r}: it was defined inside a function; move it to module level"
        raise CallableNameError(message)
    try:
        value: Any = importlib.import_module(module_name)
    except INTERRUPTIONS:
        raise
    except BaseException as error:  # a module may raise anything while it is imported, or call sys.exit
        message = (
            f"can't load {name!r}: importing {module_name!r} failed ({type(error).__name__}: {error}); install or "
            "mend the package that provides it"
        )
        raise CallableNameError(message) from error
    for attribute in qualname.split("."):
        if not hasattr(value, attribute):
            near = did_you_mean(attribute, (n for n in dir(value) if not n.startswith("_")))
            message = f"can't load {name!r}: {module_name!r} has no {qualname!r}{near}"
            raise CallableNameError(message)
        value = getattr(value, attribute)
    return value


def _qualname(obj: Any) -> str:
    """Returns the object's dotted name inside its module, or says why it has none to rely on."""
    qualname: Any = getattr(obj, "__qualname__", None) or getattr(obj, "__name__", None)
    reason = _why_unnameable(obj, qualname)
    if reason:
        message = (
            f"{qualname or obj!r} can't be stored in a config: it is {reason}, which no other "
            "process can load by name; use a module-level function or class, or "
            "config_for(function, argument=value)"
        )
        raise CallableNameError(message)
    return str(qualname)


def _why_unnameable(obj: Any, qualname: Any) -> str:
    if isinstance(obj, functools.partial):
        return "a functools.partial"
    if not isinstance(qualname, str):
        return "an object without a name"
    if "<lambda>" in qualname:
        return "a lambda"
    if "<locals>" in qualname:
        return "defined inside a function (a closure)"
    bound_to = getattr(obj, "__self__", None)
    if isinstance(obj, types.MethodType) and not isinstance(bound_to, type):
        return "a bound method"
    return ""


def _is_public(module: str, qualname: str) -> bool:
    return not any(
        part.startswith("_") and not (part.startswith("__") and part.endswith("__"))
        for part in (*module.split("."), *qualname.split("."))
    )


def _leads_to(module: types.ModuleType, qualname: str, obj: Any) -> bool:
    reached: Any = module
    for attribute in qualname.split("."):
        try:
            reached = getattr(reached, attribute)
        except (AttributeError, ImportError):
            return False
    # A class method is a new object at each look-up.
    bound = isinstance(obj, types.MethodType | types.BuiltinMethodType)
    return reached is obj or (bound and type(reached) is type(obj) and reached == obj)


def _elsewhere(obj: Any, home: str, qualname: str) -> Iterator[str]:
    top = home.partition(".")[0]
    for name, module in list(sys.modules.items()):
        if not isinstance(module, types.ModuleType):
            continue
        if top not in ("", "builtins") and name.partition(".")[0] != top:
            continue
        # vars, not getattr: probing every lazy module of a package would import half of it.
        if (
            _is_public(name, qualname)
            and qualname.partition(".")[0] in vars(module)
            and _leads_to(module, qualname, obj)
        ):
            yield f"{name}:{qualname}"
    # A module-level `fast = jit(slow)` keeps the name of what it wraps.
    for attribute, value in list(vars(sys.modules.get(home, types)).items()):
        if value is obj and home in sys.modules and _is_public(home, attribute):
            yield f"{home}:{attribute}"
