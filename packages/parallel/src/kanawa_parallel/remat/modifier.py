"""`remat`: one policy for every stack, by its name in the catalog."""

import kanawa as kn
from kanawa.contracts import RematPolicy, Stack
from kanawa.errors import UsageError

from kanawa_parallel.remat.policies import OffloadNames, SaveNames


def named_policy(name: str) -> RematPolicy.Config:
    """Returns the config of the policy catalogued as `name`.

    Raises UnknownNameError with near names where nothing is called so, UsageError where it is no policy.
    """
    component = kn.component("remat", name, asker="kanawa-parallel")
    is_policy = isinstance(component, type) and issubclass(component, RematPolicy)
    made = component.Config() if is_policy else component()
    if not isinstance(made, RematPolicy.Config):
        message = (
            f"remat: {name!r} is {component!r}, which returned {type(made).__qualname__}; expected a RematPolicy, or a "
            "function without arguments that returns the config of one"
        )
        raise UsageError(message)
    return made


class Remat(kn.Modifier):
    """`remat`: sets the policy of every stack by name, such as full, dots or save-qkv-and-output (`kanawa list remat`).

    `save` and `offload` name the tagged activations themselves, for a policy that has no name:
    `remat:save=["query"],offload=["layer_input"]`.
    """

    class Config(kn.Modifier.Config):
        policy: str = "full"
        save: tuple[str, ...] = ()
        offload: tuple[str, ...] = ()

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the policy in every stack that has a `remat` slot."""
        own = self.config
        new: RematPolicy.Config
        if own.offload:
            new = OffloadNames.Config(save=own.save, offload=own.offload)
        else:
            new = SaveNames.Config(save=own.save) if own.save else named_policy(own.policy)

        def put(node: kn.Config) -> None:
            if "remat" in node.fields():
                node.set(remat=new)

        kn.replace(cfg, target=Stack, edit=put)
        return cfg
