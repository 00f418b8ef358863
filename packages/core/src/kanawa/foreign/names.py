"""What other people's checkpoints call a module's parts, as data: relative names and invertible forms.

Every module's config has the slot `foreign`. Its class default speaks the names that Llama has in Hugging Face
checkpoints, or what is usual where Llama has no such part; a recipe whose checkpoints differ sets the slot.
"""

from kanawa.config import Config, Size
from kanawa.foreign.forms import Form


class Tensor(Config):
    """A foreign tensor that holds one parameter.

    `{}` in the name is the index along the parameter's first axis: "{}.w1.weight" of a parameter
    [experts, …] is one tensor an expert. `form` None keeps the array as it is.
    """

    name: str = ""
    form: Form.Config | None = None


class Joined(Config):
    """A foreign tensor that several parts share, one after another along `axis` or, `interleaved`, in turn.

    With `blocks`, each part is cut into that many, and they come in turn: first each part's first block.

    A part is a parameter of the module, in the form of its entry in `tensors`, or a child, all of whose tensors
    join with the other children's of the same relative name. `name` is the tensor's, or the children's common name.
    """

    name: str
    parts: tuple[str, ...]
    axis: int = 0
    interleaved: bool = False
    blocks: Size = 1


class Sliced(Config):
    """The foreign part that holds `start` to `stop` along one of our axes, counted from the last: -2 is before it."""

    name: str
    axis: int
    start: int | None = None
    stop: int | None = None


class Names(Config):
    """Relative names of a module's parts.

    `children` names children; "" adds no segment, `{}` is the layer's index in a stack or a list. `tensors`
    names parameters and state arrays; a bare string is the name of an unchanged array. `joined` lists shared
    tensors; `apart` maps a child to the foreign parts its arrays are cut into.
    `repeats` names tensors that may be there again, with the shared module and parameter they must equal:
    {"weight": "embedding.weight"}. `copies` names such tensors that must be there, and are written too: of a module
    that the other library has in every layer. `ignored` are patterns of tensors that say nothing (masks, frequency
    tables). `optional_prefix` is one that some files leave out. `aliases` are how else names may begin in files of the
    whole model: {"tower.model.": "tower."}.
    """

    INTRINSIC = ("children", "tensors", "joined", "apart", "repeats", "copies", "ignored", "optional_prefix", "aliases")

    children: dict[str, str] = {}
    tensors: dict[str, str | Tensor] = {}
    joined: tuple[Joined, ...] = ()
    apart: dict[str, tuple[Sliced, ...]] = {}
    repeats: dict[str, str] = {}
    copies: dict[str, str] = {}
    ignored: tuple[str, ...] = ()
    optional_prefix: str = ""
    aliases: dict[str, str] = {}
