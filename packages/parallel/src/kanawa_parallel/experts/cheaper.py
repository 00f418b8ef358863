"""Whether a mixture's tokens travel to the shards of their experts, or the experts' weights to the tokens.

Both take the links of the same mesh axis, once in each pass. By the planner's figures: what a device sends, and what
its memory moves of rows that a static shape has room for and no token fills.
"""

import dataclasses

from kanawa.plugins import DeviceSpec

from kanawa_parallel.cost_terms import sent_bytes


@dataclasses.dataclass(frozen=True)
class Traffic:
    """One pass of a mixture on one shard: `rows` that it sends, `room` for those that it may receive, and their width;
    bytes of all experts' weights; and how many shards hold them.
    """

    rows: int
    room: int
    width: int
    itemsize: int
    weight_bytes: int
    shards: int

    def exchange_is_cheaper(self, device: DeviceSpec | None) -> bool:
        """Returns whether sending tokens there and back takes less time than gathering all weights."""
        sent = 2 * sent_bytes("all-to-all", self.rows * self.width * self.itemsize, self.shards)
        gathered = sent_bytes("all-gather", self.weight_bytes / self.shards, self.shards)
        if device is None:
            return sent < gathered
        # Each empty row is received, sorted, computed elementwise and sent back all the same: read and written thrice.
        padding = 6 * max(0, self.room - self.rows) * self.width * self.itemsize
        link, memory = device.link_bandwidth, device.memory_bandwidth
        return sent / link + padding / memory < gathered / link
