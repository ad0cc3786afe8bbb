/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * What ring.rs, nic_port.rs and ffi.rs assume of the structures and numbers.
 */
#include <libnetmap.h>

#define AT(type, field, offset) \
	_Static_assert(offsetof(struct type, field) == (offset), #type "." #field)

AT(netmap_ring, buf_ofs, 0);
AT(netmap_ring, num_slots, 8);
AT(netmap_ring, nr_buf_size, 12);
AT(netmap_ring, ringid, 16);
AT(netmap_ring, dir, 18);
AT(netmap_ring, head, 20);
AT(netmap_ring, cur, 24);
AT(netmap_ring, tail, 28);
AT(netmap_ring, flags, 32);
AT(netmap_ring, ts, 40);
AT(netmap_ring, buf_align, 64);
AT(netmap_ring, slot, 256);
AT(netmap_slot, buf_idx, 0);
AT(netmap_slot, len, 4);
AT(netmap_slot, flags, 6);
AT(netmap_if, ni_version, 16);
AT(netmap_if, ni_tx_rings, 24);
AT(netmap_if, ni_rx_rings, 28);
AT(netmap_if, ni_bufs_head, 32);
AT(netmap_if, ni_host_tx_rings, 36);
AT(netmap_if, ni_host_rx_rings, 40);
AT(netmap_if, ring_ofs, 56);
_Static_assert(sizeof(struct netmap_slot) == 16, "a slot");
_Static_assert(sizeof(struct nmreq_header) == 88, "a request");
_Static_assert(sizeof(struct vmlan_netmap_counters) == 48, "counters");
AT(vmlan_netmap_port, nifp, 16);
AT(vmlan_netmap_port, extra_bufs, 48);
AT(vmlan_netmap_port, mem_id, 52);
AT(vmlan_netmap_port, last_rx_ring, 62);
_Static_assert(sizeof(struct vmlan_netmap_port) == 64, "a port");
AT(vmlan_netmap_name, ring, 16);
AT(vmlan_netmap_name, pipe_base, 20);
AT(vmlan_netmap_name, pipe, 28);
_Static_assert(sizeof(struct vmlan_netmap_name) == 32, "a name");
_Static_assert(NIOCTXSYNC == 0x6994 && NIOCRXSYNC == 0x6995, "requests");
_Static_assert((NIOCREGIF & 0xffff) == 0x6992, "the kind of requests");
_Static_assert(NS_FORWARD == 4 && NR_FORWARD == 4, "flags");
_Static_assert(NS_BUF_CHANGED == 1 && NS_INDIRECT == 0x10 && NS_MOREFRAG == 0x20, "flags");

int
main(void)
{
	return 0;
}
