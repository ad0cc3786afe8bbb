/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * swap ADDRESS ADDRESS COUNT: a bridge that exchanges buffers, until it has passed on so many
 * frames; by nmport_open and rings.
 */
#include "common.h"

static int
move(struct nmport_d *from, struct nmport_d *to)
{
	struct netmap_ring *rx = NETMAP_RXRING(from->nifp, 0), *tx = NETMAP_TXRING(to->nifp, 0);
	int moved = 0;

	while (!nm_ring_empty(rx) && nm_ring_space(tx) > 0) {
		struct netmap_slot *rs = &rx->slot[rx->head], *ts = &tx->slot[tx->head];
		uint32_t idx = ts->buf_idx;

		ts->buf_idx = rs->buf_idx;
		rs->buf_idx = idx;
		ts->len = rs->len;
		ts->flags = NS_BUF_CHANGED;
		rs->flags = NS_BUF_CHANGED;
		rx->head = rx->cur = nm_ring_next(rx, rx->head);
		tx->head = tx->cur = nm_ring_next(tx, tx->head);
		moved++;
	}
	return moved;
}

int
main(int argc, char **argv)
{
	struct nmport_d *a, *b;
	int left;

	CHECK(argc == 4);
	a = nmport_open(argv[1]);
	b = nmport_open(argv[2]);
	left = atoi(argv[3]);
	CHECK(a != NULL && b != NULL);
	CHECK(a->mem == b->mem);
	ready();
	while (left > 0) {
		struct pollfd fds[2] = {{a->fd, POLLIN, 0}, {b->fd, POLLIN, 0}};

		CHECK(poll(fds, 2, 60000) > 0);
		CHECK(((fds[0].revents | fds[1].revents) & POLLERR) == 0);
		left -= move(a, b) + move(b, a);
	}
	while (nm_tx_pending(NETMAP_TXRING(a->nifp, 0)) || nm_tx_pending(NETMAP_TXRING(b->nifp, 0))) {
		CHECK(ioctl(a->fd, NIOCTXSYNC, NULL) == 0);
		CHECK(ioctl(b->fd, NIOCTXSYNC, NULL) == 0);
	}
	/* What was exchanged on the receive side is seen when it is given back. */
	CHECK(ioctl(a->fd, NIOCRXSYNC, NULL) == 0);
	CHECK(ioctl(b->fd, NIOCRXSYNC, NULL) == 0);
	say("a", a->fd);
	say("b", b->fd);
	nmport_close(a);
	nmport_close(b);
	return 0;
}
