"""What XLA's CPU compiler needs of a program."""

from kanawa.plugins import DeviceSpec, ProgramTraits, Purpose

#: A loop copies all that it saves of a layer into one large array and out again; writing out more layers than these
#: takes longer to compile than it saves.
_UNROLLED_LAYERS = 16


def program_traits(device: DeviceSpec, purpose: Purpose, parameters: int, devices: int) -> ProgramTraits:
    """Returns the traits of programs on one device; compiled for several, programs are for tests of a mesh."""
    del device, parameters
    if devices > 1:
        return ProgramTraits()
    return ProgramTraits(unrolled_layers=_UNROLLED_LAYERS, recomputes_shared=purpose != "train")
