/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * host WAY ADDRESS: joins a NIC and the kernel's stack until it is told to end. WAY is how:
 *   two    two descriptors, "ADDRESS" and "ADDRESS^", and buffers exchanged between their rings
 *   one    one descriptor, "ADDRESS*", the same
 *   marks  one descriptor, "ADDRESS*": every slot is marked, and the library forwards
 */
#include "common.h"
#include <signal.h>

static volatile sig_atomic_t stop;

static void
end(int signal)
{
	(void)signal;
	stop = 1;
}

static void
move(struct netmap_ring *rx, struct netmap_ring *tx)
{
	while (!nm_ring_empty(rx) && !nm_ring_empty(tx)) {
		struct netmap_slot *rs = &rx->slot[rx->head], *ts = &tx->slot[tx->head];
		uint32_t idx = ts->buf_idx;

		CHECK((rs->flags & NS_MOREFRAG) == 0);
		ts->buf_idx = rs->buf_idx;
		rs->buf_idx = idx;
		ts->len = rs->len;
		ts->flags = NS_BUF_CHANGED;
		rs->flags = NS_BUF_CHANGED;
		rx->head = rx->cur = nm_ring_next(rx, rx->head);
		tx->head = tx->cur = nm_ring_next(tx, tx->head);
	}
}

static void
mark(struct netmap_ring *rx)
{
	while (!nm_ring_empty(rx)) {
		rx->slot[rx->head].flags |= NS_FORWARD;
		rx->head = rx->cur = nm_ring_next(rx, rx->head);
	}
}

int
main(int argc, char **argv)
{
	struct sigaction on_end = {.sa_handler = end};
	struct nmport_d *nic, *host;
	struct netmap_ring *nic_rx, *nic_tx, *host_rx, *host_tx;
	char name[512];
	int marks, two;

	CHECK(argc == 3);
	two = strcmp(argv[1], "two") == 0;
	marks = strcmp(argv[1], "marks") == 0;
	sigaction(SIGTERM, &on_end, NULL);
	if (two) {
		/* The host's first: its rings need nobody who has opened the NIC's. */
		snprintf(name, sizeof(name), "netmap:%s^", argv[2]);
		host = nmport_open(name);
		CHECK(host != NULL && host->reg.nr_mode == NR_REG_SW);
		CHECK(host->first_rx_ring == host->reg.nr_rx_rings);
		nic = nmport_open(argv[2]);
		CHECK(nic != NULL && nic->mem == host->mem);
		/* Rings that a descriptor is not bound to are not shown to it. */
		CHECK(host->nifp->ring_ofs[0] == 0 && nic->nifp->ring_ofs[0] != 0);
		CHECK(nic->nifp->ring_ofs[nic->reg.nr_tx_rings] == 0);
	} else {
		snprintf(name, sizeof(name), "netmap:%s*", argv[2]);
		nic = host = nmport_open(name);
		CHECK(nic != NULL && nic->reg.nr_mode == NR_REG_NIC_SW);
		CHECK(nic->first_rx_ring == 0 && nic->last_rx_ring == nic->reg.nr_rx_rings);
	}
	CHECK(nic->nifp->ni_host_tx_rings == 1 && host->reg.nr_host_rx_rings == 1);
	CHECK(strcmp(host->nifp->ni_name, "nm7") == 0);
	nic_tx = NETMAP_TXRING(nic->nifp, 0);
	nic_rx = NETMAP_RXRING(nic->nifp, 0);
	host_tx = NETMAP_TXRING(host->nifp, host->reg.nr_tx_rings);
	host_rx = NETMAP_RXRING(host->nifp, host->reg.nr_rx_rings);
	CHECK(host_tx->ringid == host->reg.nr_tx_rings && host_tx->dir == 0);
	CHECK(host_rx->ringid == host->reg.nr_rx_rings && host_rx->dir == 1);
	if (marks)
		nic_rx->flags = host_rx->flags = NR_FORWARD;
	ready();
	while (!stop) {
		struct pollfd fds[2] = {{nic->fd, POLLIN, 0}, {host->fd, POLLIN, 0}};

		/* A frame that waits for room waits for that, not for more of its kind. */
		if (!marks && !nm_ring_empty(host_rx))
			fds[0].events = two ? POLLOUT : POLLIN | POLLOUT;
		/* Not for long: the signal may come between the look at `stop` and the sleep. */
		if (poll(fds, two ? 2 : 1, 1000) < 0)
			continue;
		CHECK(((fds[0].revents | fds[1].revents) & POLLERR) == 0);
		if (marks) {
			mark(nic_rx);
			mark(host_rx);
		} else {
			move(nic_rx, host_tx);
			move(host_rx, nic_tx);
		}
	}
	CHECK(ioctl(host->fd, NIOCTXSYNC) == 0 && ioctl(host->fd, NIOCRXSYNC) == 0);
	if (two)
		CHECK(ioctl(nic->fd, NIOCTXSYNC) == 0 && ioctl(nic->fd, NIOCRXSYNC) == 0);
	say("nic", nic->fd);
	say("host", host->fd);
	if (two)
		nmport_close(host);
	nmport_close(nic);
	return 0;
}
