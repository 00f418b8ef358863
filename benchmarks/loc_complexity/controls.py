"""Positive controls: systems that we wrote to cost more, so that the instrument is seen to notice."""

from loc_complexity.cost import Tree
from loc_complexity.features import Feature
from loc_complexity.ours import Ours
from loc_complexity.zoo import models_of


class BranchPerModel(Ours):
    """Ours, with a branch planted in each model file."""

    name = "control: a branch in each model"

    def after(self, feature: Feature, num_models: int, num_variants: int) -> Tree:
        """Returns the tree in which every model asks for the variant."""
        tree = dict(super().after(feature, num_models, num_variants))
        branch = "    if variant is not None:\n        attention.set(positions=variant)\n"
        for path in models_of(tree):
            tree[path] = tree[path].replace("    block = ", branch + "    block = ")
        return tree


class SubclassPerModel(Ours):
    """A class for each model and variant, in a new file, and a row for each in a registry."""

    name = "control: a subclass for each model and variant"
    side_tables = ("registry/*",)

    def before(self, num_models: int) -> Tree:
        """Returns the zoo and its registry."""
        rows = "".join(f'REGISTRY["model-{i}"] = "model_{i}"\n' for i in range(num_models))
        return {**super().before(num_models), "registry/registry.py": f"REGISTRY = {{}}\n{rows}"}

    def after(self, feature: Feature, num_models: int, num_variants: int) -> Tree:
        """Returns the tree with N x M subclasses."""
        tree = dict(self.before(num_models))
        for i in range(num_models):
            for j in range(num_variants):
                text = f"class Model{i}Variant{j}(Model{i}):\n    feature = '{feature.name}-{j}'\n"
                tree[f"zoo/model_{i}_variant_{j}.py"] = text
                tree["registry/registry.py"] += f'REGISTRY["model-{i}-{j}"] = "model_{i}_variant_{j}"\n'
        return tree


class FlagPerVariant(Ours):
    """One shared config class with a branch for each variant, as an enum of RoPE types grows."""

    name = "control: a shared branch for each variant"

    def before(self, num_models: int) -> Tree:
        """Returns the zoo and the shared file."""
        return {**super().before(num_models), "zoo/shared.py": "def positions(kind):\n    return None\n"}

    def after(self, feature: Feature, num_models: int, num_variants: int) -> Tree:
        """Returns the tree with M branches."""
        branches = "".join(f"    if kind == {i}:\n        return {i}\n" for i in range(num_variants))
        shared = f"def positions(kind):\n{branches}    return None\n"
        return {**super().after(feature, num_models, num_variants), "zoo/shared.py": shared}


CONTROLS = (BranchPerModel(), SubclassPerModel(), FlagPerVariant())
