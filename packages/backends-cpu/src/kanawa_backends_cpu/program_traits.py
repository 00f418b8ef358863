"""What XLA's CPU compiler needs of a program."""

from kanawa.plugins import DeviceSpec, ProgramTraits, Purpose

#: A loop copies all that it saves of a layer into one large array and out again; writing out more layers than these
#: takes longer to compile than it saves.
_UNROLLED_LAYERS = 16


def program_traits(device: DeviceSpec, purpose: Purpose, parameters: int, devices: int) -> ProgramTraits:
    """Returns the traits of programs; those for several devices are tests of a mesh, and aren't unrolled."""
    del device, parameters
    serving, alone = purpose != "train", devices == 1
    return ProgramTraits(
        unrolled_layers=_UNROLLED_LAYERS if alone else 0,
        recomputes_shared=alone,
        converts_whole_arrays=serving,
        reads_filled_pages=serving,
    )
