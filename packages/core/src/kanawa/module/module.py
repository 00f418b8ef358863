"""Module: declares parameters, state and children in `setup`; computes in public methods, each in its own context."""

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar
from typing import ParamSpec as Parameters

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from kanawa.arrays.axes import LogicalAxes
from kanawa.arrays.constrain import constrain_param
from kanawa.arrays.init import Initializer, fan_in_normal, zeros
from kanawa.arrays.plan import current_plan
from kanawa.arrays.spec import ParamSpec
from kanawa.arrays.stored_shard import StoredShard
from kanawa.config import FROM_PARENT, Configurable
from kanawa.errors import ContextError, ModuleError, did_you_mean
from kanawa.foreign.names import Names
from kanawa.module.child_types import check_children
from kanawa.module.context import (
    Context,
    child_context,
    current_context,
    find_context,
    installed,
    join_path,
)
from kanawa.module.metrics import Metric
from kanawa.module.outputs import Loss

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
P = Parameters("P")
R = TypeVar("R", covariant=True)

#: No default, where None may be one.
_RAISES = object()
_CHILD_NAME = re.compile(r"([a-z][a-z0-9_]*)(\[\d+\])?")


class _Forward(Protocol[P, R]):
    """What has a `forward`: calling a module takes what its `forward` takes, and returns what that returns."""

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> R: ...


def nowrap(method: F) -> F:
    """Marks a public method that needs no context of its own, such as one that returns shapes."""
    method._kanawa_nowrap = True  # type: ignore[attr-defined]
    return method


class Module(Configurable, abstract=True):
    """A node of the model tree. Subclasses implement `setup` and public methods, usually `forward`."""

    class Config(Configurable.Config):
        """What every module can be configured with: what checkpoints of others call its parts."""

        INTRINSIC = ("foreign",)

        foreign: Names = Names()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, method in list(vars(cls).items()):
            # Private methods run in their caller's context; `setup` runs before there is any.
            if name.startswith("_") or name == "setup" or not inspect.isfunction(method):
                continue
            if getattr(method, "__isabstractmethod__", False) or hasattr(method, "_kanawa_nowrap"):
                continue
            setattr(cls, name, _in_own_context(method))

    def __init__(self, cfg: Config, *, name: str = "", parent: "Module | None" = None) -> None:
        super().__init__(cfg)
        self.name = name
        self.parent = parent
        self.num_stacked: int | None = None
        self.frozen = False
        self.children: dict[str, Module] = {}
        self.param_specs: dict[str, ParamSpec] = {}
        self.state_specs: dict[str, ParamSpec] = {}
        self._shared: dict[str, Module] = {}
        self._declaring = True
        self.setup()
        self._declaring = False
        check_children(self, Module)

    def setup(self) -> None:
        """Declares parameters, state and children; the default declares none."""

    # --- declaring -------------------------------------------------------------------------------------------

    def add_param(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        axes: LogicalAxes,
        init: Initializer | None = None,
        **traits: Any,
    ) -> None:
        """Declares a trained parameter; `traits` are further fields of ParamSpec, such as `fan_in_axes`."""
        self._check_declaration(name)
        spec = ParamSpec(tuple(shape), tuple(axes), init=init or fan_in_normal(), **traits)
        self.param_specs[name] = spec

    def add_state(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        axes: LogicalAxes,
        init: Initializer = zeros,
        dtype: str = "float32",
    ) -> None:
        """Declares state that `update` changes and no gradient reaches, such as a running mean."""
        self._check_declaration(name)
        self.state_specs[name] = ParamSpec(tuple(shape), tuple(axes), dtype, init, (), ())

    def add_child(
        self, name: str, cfg: Config | None, *, stacked: int | None = None, frozen: bool = False, **from_parent: Any
    ) -> "Module | None":
        """Builds a child from a config slot of the same name, fills its FROM_PARENT fields, and returns it.

        Annotate it in the class body (`norm: Norm`, `gate: OutputGate | None`, `terms: tuple[TokenLoss, ...]` for
        children `terms[0]`, …): editors then know its methods, and its class is checked once `setup` is done.

        `stacked` declares that many copies in one set of arrays with a leading `layers` axis, for kn.scan.
        `frozen` makes every parameter below untrainable. A None config declares an absent child: `self.<name>` is None.
        """
        self._check_child_name(name)
        if cfg is None:
            setattr(self, name, None)
            return None
        child: Module = self._configured(name, cfg, from_parent).build(name=name, parent=self)
        child.num_stacked = stacked
        child.frozen = frozen
        self.children[name] = child
        if name.isidentifier():
            setattr(self, name, child)
        return child

    def share(self, name: str, module: "Module") -> None:
        """Lets every descendant call `module` as `self.shared_module(name)`, with this module's own parameters."""
        self._shared[name] = module

    @nowrap
    def shared_module(self, name: str) -> Any:
        """Returns the module that an ancestor shares under `name`; raises ModuleError if none does.

        The caller knows its class: `embedding: Embedding = self.shared_module("embedding")`.
        """
        node: Module | None = self
        offered: list[str] = []
        while node is not None:
            if name in node._shared:
                return node._shared[name]
            offered += node._shared
            node = node.parent
        message = f"{self.path}: no ancestor shares a module named {name!r}{did_you_mean(name, offered)}"
        raise ModuleError(message)

    def _configured(self, name: str, cfg: Config, from_parent: Mapping[str, Any]) -> Config:
        if not hasattr(type(cfg), "_target"):
            message = f"{self.path}.{name}: {type(cfg).__name__} is not the config of a module"
            raise ModuleError(message)
        fields = cfg.fields()
        for field, value in from_parent.items():
            if field not in fields:
                message = (
                    f"{self.path}: gives child {name!r} the field {field!r}, which {type(cfg).__qualname__} "
                    f"doesn't have{did_you_mean(field, fields)}"
                )
                raise ModuleError(message)
            present = getattr(cfg, field)
            if present is not FROM_PARENT and present != value:
                message = (
                    f"{self.path}.{name}.{field} is set to {present!r}, but its parent derives {value!r}; "
                    f"leave it unset (FROM_PARENT)"
                )
                raise ModuleError(message)
        # A copy: the same config may stand in several slots, whose parents derive different sizes.
        return cfg.derived(**from_parent)

    def _check_declaration(self, name: str) -> None:
        if not self._declaring:
            message = f"{self.path}: {name!r} is declared outside of setup()"
            raise ModuleError(message)
        taken = [*self.param_specs, *self.state_specs, *self.children]
        if name in taken or not name.isidentifier():
            reason = "is declared twice" if name in taken else "is not a valid name"
            message = f"{self.path}: {name!r} {reason}; already declared: {', '.join(taken) or 'nothing'}"
            raise ModuleError(message)

    def _check_child_name(self, name: str) -> None:
        match = _CHILD_NAME.fullmatch(name)
        if match is None:
            message = f"{self.path}: child name {name!r} must be like 'norm' or 'layers[0]'"
            raise ModuleError(message)
        if name.isidentifier():
            self._check_declaration(name)
        if hasattr(Module, name):
            message = f"{self.path}: a child can't be named {name!r}, which is a member of every module"
            raise ModuleError(message)
        fields = self.config.fields()
        if match[1] not in fields:
            message = (
                f"{self.path}: child {name!r} has no config field of that name in "
                f"{type(self.config).__qualname__}{did_you_mean(match[1], fields)}; a child's name is its config path"
            )
            raise ModuleError(message)

    # --- looking ---------------------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """Dotted path from the root of the tree; the root itself shows as its class name."""
        if self.parent is None:
            return self.name or type(self).__name__
        above = self.parent
        return self.name if above.parent is None and not above.name else f"{above.path}.{self.name}"

    def __repr__(self) -> str:
        return f"{self.config!r}.build()"

    @nowrap
    def built_config(self) -> Config:
        """Returns a copy of the config with every FROM_PARENT value filled in, down the whole tree."""
        cfg: Module.Config = self.config.clone()
        for name, child in self.children.items():
            cfg.set_path(name, child.built_config())
        return cfg

    @nowrap
    def flops_per_token(self, context_length: float) -> float:
        """Returns forward matmul FLOPs a token costs, where each query sees `context_length` keys on average."""
        return sum((child.num_stacked or 1) * child.flops_per_token(context_length) for child in self.children.values())

    @nowrap
    def idle_parameters(self) -> int:
        """Returns how many parameters below one token never meets, in all layers: experts it isn't sent to."""
        return sum((child.num_stacked or 1) * child.idle_parameters() for child in self.children.values())

    @nowrap
    def longest_sequence(self) -> int | None:
        """Returns how many tokens a sequence may have at most; None where nothing below sets a limit."""
        limits = [limit for child in self.children.values() if (limit := child.longest_sequence()) is not None]
        return min(limits, default=None)

    @nowrap
    def trained_length(self) -> int | None:
        """Returns how long sequences are that it was trained on, as far as its layers know; None where none does."""
        lengths = [length for child in self.children.values() if (length := child.trained_length()) is not None]
        return min(lengths, default=None)

    @nowrap
    def layer_number(self, child: str, index: int) -> int:
        """Returns the number that copy `index` of a stacked child, or place `index` of a list, has in foreign names."""
        del child
        return index

    @nowrap
    def first_layer(self, child: str) -> int:
        """Returns how many layers come before those of a child that is itself a stack."""
        del child
        return 0

    def __call__(self: _Forward[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls `forward`."""
        return self.forward(*args, **kwargs)

    # --- computing -------------------------------------------------------------------------------------------

    @property
    def train(self) -> bool:
        """Whether this call trains (dropout on, statistics updated)."""
        return self._context("self.train").train

    def _context(self, doing: str) -> Context:
        context = current_context()
        if context.module is not self:
            message = (
                f"{doing} of {self.path} was used while {context.module.path} is running; "
                f"call a public method of {self.path}, which gets a context of its own"
            )
            raise ContextError(message)
        return context

    def param(self, name: str, dtype: Any = None) -> jax.Array:
        """Returns a parameter in `dtype`, by default the precision policy's compute dtype.

        The cast happens on the stored sharding, before any gather; gradients come back in the stored dtype.
        """
        context = self._context("param")
        context.check_trace(f"param({name!r}) is read")
        if name not in self.param_specs:
            message = f"{self.path} has no parameter {name!r}{did_you_mean(name, self.param_specs)}"
            raise ModuleError(message)
        if name not in context.params:
            message = f"{self.path}: the parameters passed in hold no {name!r}{did_you_mean(name, context.params)}"
            raise ModuleError(message)
        value: jax.Array | StoredShard = context.params[name]
        wanted = jnp.dtype(current_plan().precision.compute if dtype is None else dtype)
        if isinstance(value, StoredShard):
            stored = value.array.dtype
            return value.whole(wanted if jnp.issubdtype(stored, jnp.floating) else stored)
        # Integers (codes of a quantised weight) keep their dtype, whatever maths runs in.
        if value.dtype == wanted or not jnp.issubdtype(value.dtype, jnp.floating):
            return value
        return constrain_param(value.astype(wanted), self.param_specs[name].axes, f"{self.path}.{name}")

    def state(self, name: str) -> jax.Array:
        """Returns a state array's value, updates by earlier calls in the same pass included."""
        context = self._context("state")
        context.check_trace(f"state({name!r}) is read")
        if name not in context.state:
            message = f"{self.path} has no state {name!r}{did_you_mean(name, self.state_specs)}"
            raise ModuleError(message)
        return context.read_state(name)

    def update(self, name: str, value: jax.Array) -> None:
        """Sets the value a state array has from now on; it keeps its dtype, and no gradient flows into it.

        A later update in the same pass, by this call or another of the same module, takes its place. Raises
        ModuleError for a value of another shape.
        """
        context = self._context("update")
        context.check_trace(f"update({name!r}) is called")
        if name not in self.state_specs:
            message = f"{self.path} has no state {name!r}{did_you_mean(name, self.state_specs)}"
            raise ModuleError(message)
        spec, value = self.state_specs[name], jnp.asarray(value)
        if value.shape != spec.shape:
            message = f"{self.path}: state {name!r} has shape {spec.shape}, and an update has {value.shape}"
            raise ModuleError(message)
        stored = jax.lax.stop_gradient(value.astype(spec.dtype))
        context.collector.state[join_path(context.home, name)] = stored

    def next_key(self) -> jax.Array:
        """Returns a fresh random key, which depends on the module's path and layer index only."""
        context = self._context("next_key")
        context.check_trace("next_key() is called")
        return context.next_key()

    def record(self, name: str, metric: Metric) -> None:
        """Records a metric under this module's path."""
        context = self._context("record")
        context.check_trace(f"record({name!r}) is called")
        context.collector.put("metrics", context.path_of(name), metric)

    def add_loss(
        self, name: str, total: jax.Array, weight: Any, coefficient: float = 1.0, *, primary: bool = False
    ) -> None:
        """Adds the term `coefficient * total / weight` to the training loss; both sums are over this shard's data.

        `primary` declares the term that says how good the model is, where it adds others that only help it learn.
        """
        context = self._context("add_loss")
        context.check_trace(f"add_loss({name!r}) is called")
        loss = Loss(jnp.asarray(total, jnp.float32), jnp.asarray(weight, jnp.float32), coefficient, primary)
        context.collector.put("losses", context.path_of(name), loss)

    def emit(self, name: str, value: T) -> T:
        """Offers a value for inspection and change; returns it, or what the caller puts in its place: go on with that.

        Only where the caller asked for its path, it is among the outputs.
        """
        context = self._context("emit")
        wanted, path = context.collector.wanted, context.path_of(name)
        new: T = wanted.changed(path, value, context.layer)
        taken = wanted.takes(path)
        # Checked only where someone asked: other values can't leak out of a bare transform.
        if taken or new is not value:
            context.check_trace(f"emit({name!r}) is called")
        if taken:
            context.collector.put("emitted", path, new)
        return new

    def emit_made(self, name: str, make: Callable[[], Any]) -> None:
        """Emits what `make` returns, which is computed for this alone, and so only where the caller asked for it."""
        context = self._context("emit_made")
        path = context.path_of(name)
        if context.collector.wanted.takes(path):
            context.check_trace(f"emit_made({name!r}) is called")
            context.collector.put("emitted", path, make())

    def offer(self, name: str, value: Any) -> None:
        """Lets modules that run later read `value` as `self.offered(name)`; a later offer takes an earlier one's place.

        An offer is seen wherever it is known without keeping it for a loop's sake: by what follows in the same
        iteration of a scan, inside remat and jit, and after them.
        """
        context = self._context("offer")
        context.check_trace(f"offer({name!r}) is called")
        context.collector.offered[name] = value

    def offered(self, name: str, default: Any = _RAISES) -> Any:
        """Returns what a module that ran before offers under `name`, else `default` if there is one.

        Raises ModuleError otherwise.
        """
        context = self._context("offered")
        context.check_trace(f"offered({name!r}) is read")
        offers = context.collector.offers()
        if name in offers:
            return offers[name]
        if default is not _RAISES:
            return default
        message = (
            f"{self.path}: no module that ran before offers {name!r}{did_you_mean(name, offers)}; the one that "
            f"does must run earlier in the same iteration of a loop over layers, or outside of it"
        )
        raise ModuleError(message)

    @staticmethod
    def tag(name: str, x: jax.Array) -> jax.Array:
        """Names an activation, so that a remat policy can save, recompute or offload it."""
        named: jax.Array = checkpoint_name(x, name)
        return named


def _in_own_context(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a public method: a call from another module pushes a context, a call from its own does not."""

    @functools.wraps(method)
    def wrapper(self: Module, *args: Any, **kwargs: Any) -> Any:
        running = find_context()
        # Outside of any call a method may still answer from the config; one that reads parameters says what is missing.
        if running is None or running.module is self:
            return method(self, *args, **kwargs)
        context = child_context(self)
        # No way down from the running module, as to one that was built apart: it has no slice of these parameters.
        if context is None:
            return method(self, *args, **kwargs)
        with installed(context), jax.named_scope(self.name or type(self).__name__):
            try:
                return method(self, *args, **kwargs)
            except Exception as error:
                _note_call(error, self, method.__name__, args, kwargs)
                raise

    return wrapper


def _note_call(error: Exception, module: Module, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Adds to a traceback which module failed, and on what shapes; only the innermost call says so."""
    # The innermost module is where it failed; every caller above would only repeat its own shapes.
    if getattr(error, "_kanawa_noted", False):
        return
    shown = [_shape_text(a) for a in args] + [f"{k}={_shape_text(v)}" for k, v in kwargs.items()]
    error.add_note(f"in module {module.path}, {type(module).__name__}.{method}({', '.join(shown)})")
    error._kanawa_noted = True  # type: ignore[attr-defined]


def _shape_text(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}{list(value.shape)}"
    return type(value).__name__
