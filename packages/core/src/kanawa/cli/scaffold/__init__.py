"""What `kanawa new plugin` writes: a package around one component, with its tests from the conformance kit."""
