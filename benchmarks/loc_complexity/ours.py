"""Our system under the instrument: variants are modifiers in the catalog, and one loop turns them on everywhere."""

from loc_complexity.cost import Tree
from loc_complexity.features import Feature
from loc_complexity.zoo import zoo

#: The only configuration there is: written once, whatever N and M are. The behaviour tests run this very text.
EVERYWHERE = '''"""Every model of the zoo with every variant of a feature."""

import kanawa as kn
from kanawa.composition.modifiers import configured


def experiments(feature, experiment_of):
    """Yields (model, variant, config before, config after)."""
    variants = [state.name for state in kn.host().components("modifiers") if state.distribution == feature]
    models = [state.name for state in kn.host().components("models") if state.distribution == "zoo"]
    for model in models:
        before = experiment_of(kn.component("models", model)())
        for variant in variants:
            yield model, variant, before, configured(variant, {})(before.clone())
'''


class Ours:
    """The zoo plus a package with the feature's variants."""

    name = "kanawa"
    configuration = ("sweep/*",)
    side_tables = ()

    def before(self, num_models: int) -> Tree:
        """Returns the zoo."""
        return zoo(num_models)

    def after(self, feature: Feature, num_models: int, num_variants: int) -> Tree:
        """Returns the zoo with the feature on in all of it."""
        package = feature.name.replace("-", "_")
        lines = ["[project]", f'name = "{feature.name}"', 'version = "1.0"']
        lines.append('[project.entry-points."kanawa.modifiers"]')
        lines += [f'"{feature.name}-{i}" = "{package}.variant_{i}:Modify"' for i in range(num_variants)]
        files = {f"{package}/__init__.py": "", f"{package}/pyproject.toml": "\n".join(lines) + "\n"}
        files |= {f"{package}/variant_{i}.py": feature.variant(i) for i in range(num_variants)}
        return {**self.before(num_models), **files, "sweep/everywhere.py": EVERYWHERE}
