"""The functions of `import kanawa as kn` that use experiments and runs; the verbs of the command line call them.

`kn.experiment`, `kn.show` and `kn.kernels` need core alone. `kn.plan`, `kn.train` and `kn.open` are components of kind
"api": the distribution that has one is found through the catalog, so that core imports no plugin.
"""
