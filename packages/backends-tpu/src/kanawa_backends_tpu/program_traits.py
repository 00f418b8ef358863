"""What the TPU's compiler needs of a program beside its options."""

from kanawa.plugins import DeviceSpec, ProgramTraits, Purpose

from kanawa_backends_tpu.mesh_rules import MEDIUM


def program_traits(device: DeviceSpec, purpose: Purpose, parameters: int, devices: int) -> ProgramTraits:
    """Returns what training a model that is spread over several devices needs; nothing for any other program.

    The compiler would fuse norms and activations into every matmul that reads them, and compute them once a tile. It
    may carry the residual stream transposed through a loop over layers, because one matmul prefers it so. Smaller
    models were not measured.
    """
    del device
    if purpose != "train" or parameters < MEDIUM or devices == 1:
        return ProgramTraits()
    return ProgramTraits(materialized_inputs=True, row_major_stream=True)
