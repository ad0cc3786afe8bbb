/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * liar NAME [OTHER]: positions, indexes, lengths and flags that cannot be. Each costs its ring a
 * reset, which poll tells, and nothing else: the frames between them are sent. OTHER is the other
 * end of a pipe.
 */
#include "common.h"

static struct nmport_d *d, *end;
static struct netmap_ring *tx, *rx;
static unsigned int sent, resets;

/* The other end reads all there is. */
static void
drain(void)
{
	struct netmap_ring *ring;

	if (end == NULL)
		return;
	ring = NETMAP_RXRING(end->nifp, 0);
	CHECK(ioctl(end->fd, NIOCRXSYNC) == 0);
	ring->head = ring->cur = ring->tail;
	CHECK(ioctl(end->fd, NIOCRXSYNC) == 0);
}

static int
look(short events)
{
	struct pollfd fd = {d->fd, events, 0};

	drain();
	CHECK(poll(&fd, 1, 0) >= 0);
	return fd.revents;
}

/* A frame that says which one it is. */
static void
good(void)
{
	unsigned char frame[60] = {0x52, 0x54, 0, 0, 0, 1, 0x52, 0x54, 0, 0, 0, 2, 0x88, 0xb5};

	frame[14] = (unsigned char)sent++;
	while (nmport_inject(d, frame, sizeof(frame)) < 0)
		look(POLLOUT);
	CHECK((look(POLLOUT) & POLLERR) == 0);
}

/* The ring is as it was; a frame passes. */
static void
was_reset(struct netmap_ring *ring, uint32_t head, short events)
{
	resets++;
	CHECK(look(events) & POLLERR);
	CHECK(ring->head == head && ring->cur == head);
	CHECK(counters(d->fd).resets == resets);
	CHECK((look(events) & POLLERR) == 0);
	good();
}

static uint32_t
step(struct netmap_ring *ring)
{
	uint32_t head = ring->head;

	ring->head = ring->cur = nm_ring_next(ring, head);
	return head;
}

static void
positions(void)
{
	uint32_t head = tx->head;

	tx->head = tx->cur = tx->num_slots + 5;
	was_reset(tx, head, POLLOUT);
	head = tx->head;
	/* Where all but one slot are the program's there is no place beyond tail. */
	if (nm_ring_next(tx, tx->tail) != head) {
		tx->head = tx->cur = nm_ring_next(tx, tx->tail);
		was_reset(tx, head, POLLOUT);
		head = tx->head;
	}
	head = tx->head;
	tx->head = nm_ring_next(tx, head); /* and cur stays behind */
	was_reset(tx, head, POLLOUT);
	/* What is written into tail does not count. */
	tx->tail = 0xffffffff;
	CHECK((look(POLLOUT) & (POLLERR | POLLOUT)) == POLLOUT);
	CHECK(tx->tail < tx->num_slots);
	head = rx->head;
	rx->head = rx->cur = nm_ring_next(rx, rx->tail);
	was_reset(rx, head, POLLIN);
}

static void
slots(void)
{
	uint32_t indexes[] = {0, 1, 0x10000, 0xffffffff};
	unsigned int n;

	for (n = 0; n < 4; n++) {
		struct netmap_slot *slot = &tx->slot[tx->head];
		uint32_t idx = slot->buf_idx, head = step(tx);

		slot->buf_idx = indexes[n];
		slot->len = 60;
		CHECK(look(POLLOUT) & POLLERR);
		CHECK(tx->head == head && slot->buf_idx == 0 && slot->len == 0);
		slot->buf_idx = idx;
		slot->flags = NS_BUF_CHANGED;
		good();
	}
	for (n = 0; n < 3; n++) {
		struct netmap_slot *slot = &tx->slot[tx->head];
		uint32_t head = step(tx);

		slot->len = n == 0 ? 2049 : n == 1 ? 65535 : 60;
		slot->flags = n == 2 ? NS_INDIRECT : 0;
		CHECK(look(POLLOUT) & POLLERR);
		CHECK(tx->head == head && slot->len == 0);
		good();
	}
	resets += 7;
	CHECK(counters(d->fd).resets == resets);
	/* Too short for Ethernet: nothing is sent, and nothing is wrong with the ring. */
	tx->slot[tx->head].len = 5;
	tx->slot[tx->head].flags = 0;
	step(tx);
	CHECK((look(POLLOUT) & POLLERR) == 0);
	/* ioctl does not tell; the ring is reset all the same. */
	n = tx->head;
	tx->head = tx->cur = 0x80000000;
	CHECK(ioctl(d->fd, NIOCTXSYNC, NULL) == 0);
	CHECK(tx->head == n && counters(d->fd).resets == ++resets);
	good();
}

static void
requests(const char *address)
{
	struct nmreq req;
	struct nm_desc *one;
	struct nmport_d *same;
	int fd;

	errno = 0;
	CHECK(ioctl(d->fd, NIOCREGIF, &req) == -1 && errno == EBUSY);
	CHECK(ioctl(d->fd, NIOCGINFO, &req) == -1 && errno == EOPNOTSUPP);
	CHECK(nm_open("netmap:nonsense", NULL, 0, NULL) == NULL && errno == EINVAL);
	memset(&req, 0, sizeof(req));
	req.nr_ringid = 7;
	CHECK(nm_open(address, &req, NR_REG_ONE_NIC, NULL) == NULL && errno == EINVAL);
	/* The same NIC once more: it is shared. */
	same = nmport_clone(d);
	same->reg.nr_mode = NR_REG_ONE_NIC;
	CHECK(nmport_open_desc(same) == 0 && same->fd != d->fd);
	CHECK(NETMAP_TXRING(same->nifp, 0) == tx && NETMAP_RXRING(same->nifp, 0) == rx);
	nmport_close(same);
	one = nm_open(address, NULL, 0, NULL);
	CHECK(one != NULL && NETMAP_TXRING(one->nifp, 0) == tx);
	fd = one->fd;
	CHECK(nm_close(one) == 0 && nm_close(NULL) == EINVAL);
	CHECK(vmlan_netmap_close(fd) == -1 && errno == EBADF);
	CHECK(vmlan_netmap_open(NULL, 1, 0, 0, NULL) == -1 && errno == EFAULT);
	good();
}

int
main(int argc, char **argv)
{
	CHECK(argc == 2 || argc == 3);
	d = nmport_open(argv[1]);
	CHECK(d != NULL);
	if (argc == 3)
		CHECK((end = nmport_open(argv[2])) != NULL);
	tx = NETMAP_TXRING(d->nifp, d->first_tx_ring);
	rx = NETMAP_RXRING(d->nifp, d->first_rx_ring);
	ready();
	good();
	positions();
	slots();
	if (d->reg.nr_mode == NR_REG_ALL_NIC && end == NULL)
		requests(argv[1]);
	while (nm_tx_pending(tx))
		look(POLLOUT);
	/* A pipe passes on what is too short for Ethernet. */
	if (end != NULL)
		CHECK(counters(end->fd).rx_frames == sent + 1 && counters(end->fd).resets == 0);
	say("liar", d->fd);
	printf("sent %u\n", sent);
	nmport_close(end);
	nmport_close(d);
	return 0;
}
