"""How fast a group of devices can communicate: inside a domain of fast links, between domains, or both."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from kanawa.plugins import DeviceSpec


@dataclass(frozen=True)
class Link:
    """A kind of link and the bytes a second that it carries for one device."""

    name: str
    bandwidth: float


@dataclass(frozen=True)
class Links:
    """Where each partition stands: its fast domain, and its place on the torus where there is one."""

    device: DeviceSpec
    domains: np.ndarray
    places: np.ndarray | None = None

    @classmethod
    def of_devices(cls, device: DeviceSpec, devices: Sequence[Any] | None, count: int) -> "Links":
        """Returns the links of a mesh's devices, in mesh order; of `count` devices in a row if there are none."""
        per_domain = device.chips_in_domain(count // device.jax_devices_per_chip) * device.jax_devices_per_chip
        if devices is None:
            return cls(device, np.arange(count) // per_domain)
        if device.torus_dimensions:
            domains = np.array([getattr(d, "slice_index", 0) or 0 for d in devices])
            places = np.array([getattr(d, "coords", (0, 0, 0)) for d in devices])
            return cls(device, domains, places)
        ids = np.array([d.id for d in devices])
        # Ids count hosts in order, and a domain is that many neighbours.
        return cls(device, (ids - ids.min()) // per_domain)

    def seconds(self, sent: float, link: Link) -> float:
        """Returns how long a collective takes of which each device sends this many bytes over the link."""
        return sent / link.bandwidth + self.device.link_latency_seconds

    def between(self, groups: np.ndarray, one_dimension: bool = False) -> Link:
        """Returns the link that limits a ring through the first group, and its bandwidth for one device.

        A ring through several domains leaves each by all its members' network adapters at once. On a torus a group
        uses the links of the dimensions it spans; `one_dimension` if the compiler chose a ring along one.
        """
        group = groups[0] if groups.size else np.zeros(1, int)
        # A text from elsewhere may name more partitions than the target has.
        group = group[group < len(self.domains)]
        shared = self.device.jax_devices_per_chip
        reached = np.unique(self.domains[group])
        # As many members of a domain send at once as it has; unequal parts are limited by the smallest, near this mean.
        members = max(1, len(group) // max(1, len(reached)))
        inside = self.device.link_bandwidth / shared * self._mates(group) * self._share(group, one_dimension, members)
        if len(reached) <= 1:
            return Link(self.device.link_name, inside)
        outside = self.device.network_bandwidth / shared * members
        return Link(self.device.network_name, min(outside, inside) if members > 1 else outside)

    def _mates(self, group: np.ndarray) -> int:
        """Returns how many of a group's devices are on one chip: a ring takes them in turn, over links of its own
        between them, so that the chip's links carry each part once for all of them.
        """
        shared = self.device.jax_devices_per_chip
        chips = len(np.unique(group // shared if self.places is None else self.places[group], axis=0))
        return min(shared, max(1, len(group) // chips)) if chips > 1 else 1

    def _share(self, group: np.ndarray, one_dimension: bool, members: int) -> float:
        if self.device.direct_links:
            # Rings through a group of n run along n - 1 of each member's links at once.
            return min(max(members - 1, 1), self.device.direct_links) / self.device.direct_links
        total = self.device.torus_dimensions
        if self.places is None or not total or not group.size:
            return 1.0
        places = self.places[group]
        # Bandwidth is quoted over all dimensions of the torus; a group has the links of those along which its members
        # differ.
        spanned = int((places != places[:1]).any(axis=0).sum())
        return min(1 if one_dimension else max(spanned, 1), total) / total
