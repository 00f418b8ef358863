"""Config: a keyword-only record with typed fields, copied values, paths and provenance."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

from kanawa.config import traverse
from kanawa.config.freezing import freeze_tree, refuse_role
from kanawa.config.origin import Origin, caller, current_stage
from kanawa.config.paths import join_path
from kanawa.config.schema import (
    Field,
    Schema,
    class_frame,
    collect_schema,
    unknown_field,
)
from kanawa.config.value_text import constructor_text, value_text
from kanawa.config.values import (
    FrozenConfigError,
    Node,
    copy_value,
    freeze_value,
    hash_value,
    same_value,
)
from kanawa.errors import ConfigError

C = TypeVar("C", bound="Config")


class UnknownFieldError(ConfigError, AttributeError):
    """A config was asked for a field it doesn't have."""


class UnhashableConfigError(ConfigError, TypeError):
    """A config that may still change was used where a hash is needed."""


_slot = object.__setattr__


@dataclass_transform(kw_only_default=True)
class Config(Node):
    """Base of all configs; annotations in a subclass become typed, keyword-only fields.

    SCHEMA_VERSION rises when stored configs change meaning; RENAMED maps old field names to new
    ones; REMOVED names fields of older versions, which are left out when loaded; PLACEMENT names
    fields that say where and how a run executes, not what it computes.
    INTRINSIC names fields that describe the class itself, such as what others call its parts: they
    are written only where they differ from the class's default, count in no digest but "all", and
    stay behind when `replace` puts another node in this one's place.
    """

    __slots__ = ("__dict__", "__weakref__", "_frozen", "_mark", "_origins")

    SCHEMA_VERSION: ClassVar[int] = 1
    RENAMED: ClassVar[dict[str, str]] = {}
    REMOVED: ClassVar[tuple[str, ...]] = ()
    PLACEMENT: ClassVar[tuple[str, ...]] = ()
    INTRINSIC: ClassVar[tuple[str, ...]] = ()

    _target: ClassVar[type | None] = None
    _schema: ClassVar[Schema] = Schema({}, frozenset(), {})

    # What `config_for` configures; None for the config of a class.
    callee: ClassVar[Any] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._schema = collect_schema(cls, class_frame())

    def __init__(self, **values: Any) -> None:
        _slot(self, "_frozen", False)
        _slot(self, "_mark", None)
        _slot(self, "_origins", {})
        self.__dict__.update(self._schema.start())
        if values:
            self._assign(values)

    @classmethod
    def upgrade(cls, written: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the JSON of a stored config's fields without those that are REMOVED.

        A class whose removed fields mean something of others extends it.
        """
        return {name: value for name, value in written.items() if name not in cls.REMOVED}

    # Fields

    def set(self, **values: Any) -> Self:
        """Sets fields and returns self; nothing is set unless all values fit."""
        self._assign(values)
        return self

    def clone(self, **values: Any) -> Self:
        """Returns a deep, mutable copy with some fields set."""
        copied = self._copied({k: copy_value(v) for k, v in self.__dict__.items()})
        if values:
            copied._assign(values)
        return copied

    def derived(self, **values: Any) -> Self:
        """Returns a frozen copy of a frozen config with some fields set; the configs inside are shared, not copied.

        Raises what `freeze` raises.
        """
        if not self._frozen:
            return self.clone(**values).freeze()
        copied = self._copied(self.__dict__)
        if values:
            copied._assign(values)
        return copied.freeze()

    @classmethod
    def fields(cls) -> dict[str, Field]:
        """Returns the fields by name."""
        return cls._schema.fields

    def is_set(self, name: str) -> bool:
        """Returns whether someone set the field, or changed the value inside it."""
        return name in self._origins or not same_value(self.__dict__[name], self._schema.fields[name].default)

    def check(self) -> list[str]:
        """Returns what is wrong with the values taken together; subclasses override it."""
        return []

    # Tree

    def get(self, path: str) -> Any:
        """Returns the value at a path like `a.b[0].c`."""
        return traverse.get_path(self, path)

    def set_path(self, path: str, value: Any) -> Self:
        """Sets the value at a path and returns self."""
        node, name, inside, above = traverse.owner_of(self, path)
        at = (*above, name)
        if inside:
            value = traverse.container_with(vars(node)[name], at, inside, value)
        node._assign({name: value}, join_path(at))
        return self

    def walk(self) -> Iterator[tuple[str, "Config"]]:
        """Yields (path, config) for this config and all inside it, parents first."""
        return ((join_path(keys), node) for keys, node in list(traverse.walk_keys(self)))

    # Freezing and building

    @property
    def is_frozen(self) -> bool:
        """Returns whether the config refuses to change."""
        return bool(self._frozen)

    def freeze(self) -> Self:
        """Checks the whole tree, makes it immutable and returns self.

        Raises one error that lists every unset REQUIRED field and every failed check.
        """
        if not self._frozen:
            freeze_tree(self)
        return self

    def freeze_in_place(self) -> None:
        """Freezes this node alone; for `freeze`."""
        self.__dict__.update({k: freeze_value(v) for k, v in self.__dict__.items()})
        _slot(self, "_frozen", True)

    def build(self, **runtime: Any) -> Any:
        """Returns the configured object, made from a frozen copy and the runtime arguments.

        Raises AbstractRoleError for a role, and what `freeze` raises.
        """
        target = self._target
        if target is None:
            message = f"{type(self).__qualname__} is a plain record: there is nothing to build"
            raise ConfigError(message)
        refuse_role(target)
        # A caller may go on changing its config: what was built keeps the values it was built from.
        return target(self if self._frozen else self.clone().freeze(), **runtime)

    # Provenance

    def origin_history(self, path: str) -> tuple[Origin, ...]:
        """Returns who set the field at a path, oldest first, starting with the class default."""
        node, name, _, _ = traverse.owner_of(self, path)
        return (node._schema.fields[name].origin, *node._origins.get(name, ()))

    # Python

    def __setattr__(self, name: str, value: Any) -> None:
        self._assign({name: value})

    def __delattr__(self, name: str) -> None:
        message = f"{type(self).__qualname__}.{name} can't be deleted; set it to its default"
        raise UnknownFieldError(message)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise UnknownFieldError(unknown_field(type(self), name, self._schema.fields))

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        mine, theirs = self.__dict__, vars(other)
        return all(same_value(value, theirs[name]) for name, value in mine.items())

    def __hash__(self) -> int:
        if not self._frozen:
            message = f"{type(self).__qualname__} may still change; freeze() it before hashing"
            raise UnhashableConfigError(message)
        # The class takes part: two records with the same values may mean different things.
        return hash((type(self), tuple(hash_value(v) for v in self.__dict__.values())))

    def __repr__(self) -> str:
        return constructor_text(self)

    def __copy__(self) -> Self:
        return self.__deepcopy__({})

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        copied = self.clone()
        if self._frozen:
            _freeze_unchecked(copied)
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        return revive, (type(self), dict(self.__dict__), self._origins, self._frozen)

    # Inside this package

    def _copied(self, values: dict[str, Any]) -> Self:
        copied = revive(type(self), values, dict(self._origins), False)
        _slot(copied, "_mark", self._mark)
        return copied

    def _assign(self, values: dict[str, Any], where: str = "") -> None:
        if self._frozen:
            what = f"{type(self).__qualname__} (setting {', '.join(values)})"
            raise FrozenConfigError(what)
        fields = self._schema.fields
        # All are admitted before one is stored, so that a refused value leaves the config as it was.
        admitted = {}
        for name, value in values.items():
            field = fields.get(name)
            if field is None:
                raise UnknownFieldError(unknown_field(type(self), name, fields, where))
            admitted[name] = field.admit(value, where)
        stage, detail = current_stage()
        file, line = caller()
        for name, value in admitted.items():
            self.__dict__[name] = value
            made = Origin(stage, detail, file, line, value_text(value))
            self._origins[name] = (*self._origins.get(name, ()), made)

    def _store(self, name: str, value: Any, history: tuple[Origin, ...]) -> None:
        """Sets a field with this history instead of a new assignment."""
        self.__dict__[name] = self._schema.fields[name].admit(value)
        if history:
            self._origins[name] = history


def revive(cls: type[C], values: dict[str, Any], origins: dict[str, tuple[Origin, ...]], frozen: bool) -> C:
    """Rebuilds a pickled config."""
    config = object.__new__(cls)
    _slot(config, "_frozen", frozen)
    _slot(config, "_mark", None)
    _slot(config, "_origins", origins)
    config.__dict__.update(values)
    return config


def _freeze_unchecked(config: Config) -> None:
    for _, node in traverse.walk_keys(config):
        node.freeze_in_place()
