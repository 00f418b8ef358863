"""What one device does in a second, for programs that are compiled and for those that are only traced.

Every time in a plan follows from these figures: a pass over memory takes its FLOPs at peak or its bytes at the
memory's bandwidth, whichever is longer; a collective takes what a ring sends at its link's bandwidth.
"""

import dataclasses
import functools
from collections.abc import Iterable

from kanawa.plugins import Calibration, DeviceSpec

from kanawa_parallel.plan.cost.calibration import at_reached_figures
from kanawa_parallel.plan.cost.kernel_cost import KernelCosts
from kanawa_parallel.plan.cost.links import Links

#: Dimensions of an activation whose heads are apart: rows, positions, heads and their width.
_WITH_HEADS = 4
#: The figures themselves, which nothing reaches.
FIGURES = Calibration()


@dataclasses.dataclass(frozen=True)
class Machine:
    """A device's figures, the share of them that programs reach by a calibration, its links and its kernels' costs."""

    figures: DeviceSpec
    links: Links
    kernels: KernelCosts = KernelCosts()
    calibration: Calibration = FIGURES

    @functools.cached_property
    def device(self) -> DeviceSpec:
        """The device with its figures as far as programs reach them."""
        return at_reached_figures(self.figures, self.calibration)

    @functools.cached_property
    def reached_links(self) -> Links:
        """The links at the bandwidth that programs reach."""
        return dataclasses.replace(self.links, device=self.device)

    @property
    def memory_bandwidth(self) -> float:
        """Bytes a second of one JAX device's memory."""
        return self.device.memory_bandwidth / self.device.jax_devices_per_chip

    @property
    def host_bandwidth(self) -> float:
        """Bytes a second that one JAX device sends to its host's memory, and back."""
        return self.device.host_bandwidth / self.device.jax_devices_per_chip

    def beside(self, busy: float, sent: float, copied: float) -> tuple[float, float]:
        """Returns by how many seconds communication slows work of `busy` seconds down beside it, and how many longer
        than the work it takes.

        Seconds of links, `sent`, slow what runs meanwhile; the host's bus, `copied`, takes nothing from the cores.
        """
        cost = self.calibration.hidden_cost
        # Work that ends before the links do was slowed for as long as it ran, and nobody waits for it.
        slowed = cost * min(sent, busy / max(1e-9, 1.0 - cost))
        return slowed, max(0.0, sent + copied - busy - slowed)

    def kept_seconds(self, size: float, rank: int, offloaded: bool) -> float:
        """Returns what copies of a saved activation take, of `size` bytes and as many dimensions, beyond a write and a
        read.
        """
        kind = "heads" * (rank >= _WITH_HEADS) + "_" * (rank >= _WITH_HEADS and offloaded) + "offloaded" * offloaded
        return self.calibration.kept_passes.get(kind, 0.0) * size / self.memory_bandwidth

    def peak(self, dtypes: Iterable[str]) -> float:
        """Returns FLOP/s of one JAX device at the widest of the operands' dtypes; float32 runs in bf16 unless exact."""
        peaks = self.device.peak_flops
        bf16 = peaks.get("bfloat16") or max(peaks.values(), default=1.0)
        slowest = min((self._peak_of(dtype, bf16) for dtype in dtypes), default=bf16)
        return slowest / self.device.jax_devices_per_chip

    def _peak_of(self, dtype: str, bf16: float) -> float:
        peaks = self.device.peak_flops
        if dtype == "float32" and not self.device.exact_float32:
            return bf16
        share = next((s for start, s in self.calibration.narrow_shares.items() if dtype.startswith(start)), 1.0)
        if dtype in peaks:
            return peaks[dtype] * share
        # Variants of one width run at one speed: e4m3fn and e4m3fnuz, or int4 where only int8 is known.
        alike = [rate for name, rate in peaks.items() if dtype[:6] == name[:6] == "float8"]
        return max(alike, default=peaks.get("int8", bf16) if dtype == "int4" else bf16)

    def kernel_share(self, operation: str, otherwise: float = 1.0) -> float:
        """Returns what a fused kernel of this operation reaches of what matmuls do; `otherwise` if unknown."""
        shares = self.calibration.kernel_shares
        return shares[operation] / self.calibration.compute_share if operation in shares else otherwise


def kernel_operand_dtypes(dtypes: Iterable[str]) -> list[str]:
    """Returns the dtypes that a fused kernel's matmuls run in.

    Its first operands may be tables of small integers and its last ones float32 statistics, which no matmul reads.
    """
    return [dtype for dtype in dtypes if "float" in dtype and dtype != "float32"]
