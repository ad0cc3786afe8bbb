/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * pipe: two threads at the two ends of a pipe, each with its own way of opening it; then what one
 * thread can see: what is full, cut, left behind or wrong.
 */
#include "common.h"
#include <pthread.h>

#define COUNT 20000u

static int
look(int fd, short events, int timeout)
{
	struct pollfd one = {fd, events, 0};

	CHECK(poll(&one, 1, timeout) >= 0);
	return one.revents;
}

/* Gets each frame in the very buffer that it was written to, and sends that buffer back. */
static void *
answer(void *arg)
{
	struct nmport_d *d = nmport_open("netmap:threads}1");
	struct netmap_ring *rx, *tx;
	uint32_t n = 0;

	(void)arg;
	CHECK(d != NULL && d->reg.nr_mode == NR_REG_ALL_NIC && d->reg.nr_rx_rings == 1);
	CHECK(d->reg.nr_host_rx_rings == 0 && strcmp(d->hdr.nr_name, "threads}1") == 0);
	rx = NETMAP_RXRING(d->nifp, 0);
	tx = NETMAP_TXRING(d->nifp, 0);
	while (n < COUNT) {
		/* A frame that cannot be sent back waits for room. */
		short want = nm_ring_empty(rx) ? POLLIN : POLLOUT;

		CHECK(look(d->fd, want, 60000) == want);
		while (!nm_ring_empty(rx) && !nm_ring_empty(tx)) {
			struct netmap_slot *rs = &rx->slot[rx->head], *ts = &tx->slot[tx->head];
			uint32_t idx = ts->buf_idx, *words;

			words = (uint32_t *)NETMAP_BUF(rx, rs->buf_idx);
			CHECK(words[4] == n && words[5] == rs->buf_idx);
			CHECK(rs->len == 60 + n % 1000);
			ts->buf_idx = rs->buf_idx;
			rs->buf_idx = idx;
			ts->len = rs->len;
			ts->flags = rs->flags = NS_BUF_CHANGED;
			rx->head = rx->cur = nm_ring_next(rx, rx->head);
			tx->head = tx->cur = nm_ring_next(tx, tx->head);
			n++;
		}
	}
	while (nm_tx_pending(tx))
		CHECK(look(d->fd, POLLOUT, 0) >= 0);
	CHECK(ioctl(d->fd, NIOCRXSYNC) == 0);
	say("slave", d->fd);
	nmport_close(d);
	return NULL;
}

static void
threads(void)
{
	struct nm_desc *d = nm_open("netmap:threads{1", NULL, 0, NULL);
	struct netmap_ring *rx, *tx;
	uint32_t sent = 0, got = 0;
	pthread_t thread;

	CHECK(d != NULL && (d->req.nr_flags & NR_REG_MASK) == NR_REG_PIPE_MASTER);
	CHECK((d->req.nr_ringid & NETMAP_RING_MASK) == 1 && strcmp(d->req.nr_name, "threads") == 0);
	CHECK(d->first_rx_ring == 0 && d->last_rx_ring == 0);
	CHECK(pthread_create(&thread, NULL, answer, NULL) == 0);
	rx = NETMAP_RXRING(d->nifp, 0);
	tx = NETMAP_TXRING(d->nifp, 0);
	while (got < COUNT) {
		short want = POLLIN | (sent < COUNT ? POLLOUT : 0);

		CHECK(look(d->fd, want, 60000) & want);
		for (; sent < COUNT && !nm_ring_empty(tx); sent++) {
			struct netmap_slot *ts = &tx->slot[tx->head];
			uint32_t *words = (uint32_t *)NETMAP_BUF(tx, ts->buf_idx);

			/* The slave has kept the buffer that was here a round ago. */
			CHECK(sent < tx->num_slots || (ts->flags & NS_BUF_CHANGED));
			words[4] = sent;
			words[5] = ts->buf_idx;
			ts->len = (uint16_t)(60 + sent % 1000);
			ts->flags = 0;
			tx->head = tx->cur = nm_ring_next(tx, tx->head);
		}
		for (; !nm_ring_empty(rx); got++) {
			struct netmap_slot *rs = &rx->slot[rx->head];
			uint32_t *words = (uint32_t *)NETMAP_BUF(rx, rs->buf_idx);

			CHECK(words[4] == got && words[5] == rs->buf_idx);
			CHECK(rs->flags == 0);
			rx->head = rx->cur = nm_ring_next(rx, rx->head);
		}
		CHECK(ioctl(d->fd, NIOCTXSYNC) == 0 && ioctl(d->fd, NIOCRXSYNC) == 0);
	}
	CHECK(pthread_join(thread, NULL) == 0);
	say("master", d->fd);
	CHECK(nm_close(d) == 0);
}

static void
step(struct netmap_ring *ring, uint16_t len, uint16_t flags)
{
	ring->slot[ring->head].len = len;
	ring->slot[ring->head].flags = flags;
	ring->head = ring->cur = nm_ring_next(ring, ring->head);
}

/* Nobody reads: one slot stays free. Who comes later gets it all, and so does who comes back. */
static void
full(void)
{
	struct nmport_d *one = nmport_open("netmap:full}x"), *two;
	struct netmap_ring *tx, *rx;
	uint32_t count;

	CHECK(one != NULL);
	tx = NETMAP_TXRING(one->nifp, 0);
	CHECK(tx->num_slots == one->reg.nr_tx_slots && nm_ring_space(tx) == tx->num_slots - 1);
	for (count = 0; !nm_ring_empty(tx); count++)
		step(tx, 60, 0);
	CHECK(look(one->fd, POLLOUT, 50) == 0 && nm_tx_pending(tx));
	CHECK(counters(one->fd).tx_frames == count && count == tx->num_slots - 1);
	two = nmport_open("netmap:full{x");
	CHECK(two != NULL);
	rx = NETMAP_RXRING(two->nifp, 0);
	CHECK(look(two->fd, POLLIN, 60000) == POLLIN && nm_ring_space(rx) == count);
	/* Half of them are read; the rest is for the next one. */
	while (nm_ring_space(rx) > count / 2)
		step(rx, 60, 0);
	CHECK(ioctl(two->fd, NIOCRXSYNC) == 0);
	count = nm_ring_space(rx);
	nmport_close(two);
	CHECK(look(one->fd, POLLOUT, 60000) == POLLOUT);
	two = nmport_open("netmap:full{x");
	rx = NETMAP_RXRING(two->nifp, 0);
	CHECK(look(two->fd, POLLIN, 60000) == POLLIN && nm_ring_space(rx) == count);
	nmport_close(two);
	nmport_close(one);
	/* A new pipe, as nobody has the old one. */
	one = nmport_open("netmap:full{x");
	CHECK(look(one->fd, POLLIN, 0) == 0);
	nmport_close(one);
}

/* A frame is seen when its last slot is there. */
static void
cut(void)
{
	struct nmreq req;
	struct nm_desc *one, *two;
	struct netmap_ring *tx, *rx;

	memset(&req, 0, sizeof(req));
	req.nr_tx_slots = 8;
	req.nr_rx_slots = 16;
	one = nm_open("netmap:cut{0", &req, 0, NULL);
	CHECK(one != NULL && one->req.nr_tx_slots == 8 && one->req.nr_rx_slots == 16);
	/* By number, as older programs ask for it. */
	req.nr_flags = NR_REG_PIPE_SLAVE;
	req.nr_ringid = 0;
	two = nm_open("netmap:cut", &req, 0, NULL);
	CHECK(two != NULL && two->req.nr_tx_slots == 16 && two->req.nr_rx_slots == 8);
	tx = NETMAP_TXRING(one->nifp, 0);
	rx = NETMAP_RXRING(two->nifp, 0);
	step(tx, 2048, NS_MOREFRAG);
	CHECK(look(one->fd, POLLOUT, 0) == POLLOUT && look(two->fd, POLLIN, 0) == 0);
	step(tx, 100, 0);
	step(tx, 70, NS_MOREFRAG);
	CHECK(look(one->fd, POLLOUT, 0) == POLLOUT && look(two->fd, POLLIN, 0) == POLLIN);
	CHECK(nm_ring_space(rx) == 2 && rx->slot[0].flags == NS_MOREFRAG && rx->slot[1].len == 100);
	CHECK(counters(one->fd).tx_frames == 1 && counters(two->fd).rx_frames == 1);
	/* The half frame is wrong in the end: neither half is sent. */
	step(tx, 2049, 0);
	CHECK(look(one->fd, POLLOUT, 0) & POLLERR);
	CHECK(tx->head == 2 && counters(one->fd).resets == 1);
	CHECK(look(two->fd, POLLIN, 0) == POLLIN && nm_ring_space(rx) == 2);
	nm_close(one);
	nm_close(two);
}

/* What nm_dispatch has shown: sizes, what lay in one piece, whether more was to come. */
static struct {
	uint32_t len, caplen;
	uint64_t flags;
} shown[4];
static uint32_t shown_count;

static void
show(u_char *arg, const struct nm_pkthdr *hdr, const u_char *buf)
{
	struct nm_desc *d = (struct nm_desc *)arg;

	CHECK(shown_count < 4 && hdr->d == d && hdr->buf == buf);
	CHECK((char *)buf == NETMAP_BUF(NETMAP_RXRING(d->nifp, 0), hdr->slot->buf_idx));
	shown[shown_count].len = hdr->len;
	shown[shown_count].caplen = hdr->caplen;
	shown[shown_count++].flags = hdr->flags;
}

/* The slot that has a buffer, or NULL. */
static struct netmap_slot *
holder(struct netmap_ring *ring, uint32_t idx)
{
	uint32_t n;

	for (n = 0; n < ring->num_slots; n++) {
		if (ring->slot[n].buf_idx == idx)
			return &ring->slot[n];
	}
	return NULL;
}

/* The first three slots get buffers that are neighbours, from others of the ring. */
static void
neighbours(struct netmap_ring *ring)
{
	uint32_t n = 0, idx, first;

	while (!holder(ring, ring->slot[n].buf_idx + 1) || !holder(ring, ring->slot[n].buf_idx + 2))
		CHECK(++n < ring->num_slots);
	first = ring->slot[n].buf_idx;
	for (n = 0; n < 3; n++) {
		struct netmap_slot *from = holder(ring, first + n);

		idx = ring->slot[n].buf_idx;
		ring->slot[n].buf_idx = from->buf_idx;
		from->buf_idx = idx;
		from->flags = NS_BUF_CHANGED;
	}
}

/* A packet of several slots is shown once. */
static void
dispatched(void)
{
	struct nm_desc *one = nm_open("netmap:show{0", NULL, 0, NULL);
	struct nm_desc *two = nm_open("netmap:show}0", NULL, 0, NULL);
	struct netmap_ring *tx, *rx;

	CHECK(one != NULL && two != NULL);
	tx = NETMAP_TXRING(one->nifp, 0);
	rx = NETMAP_RXRING(two->nifp, 0);
	neighbours(tx);
	step(tx, 2048, NS_BUF_CHANGED | NS_MOREFRAG);
	step(tx, 2048, NS_BUF_CHANGED | NS_MOREFRAG);
	step(tx, 100, NS_BUF_CHANGED);
	step(tx, 60, NS_BUF_CHANGED);
	step(tx, 61, NS_BUF_CHANGED | NS_MOREFRAG);
	step(tx, 62, NS_BUF_CHANGED);
	step(tx, 63, NS_BUF_CHANGED);
	CHECK(look(one->fd, POLLOUT, 0) == POLLOUT && look(two->fd, POLLIN, 0) == POLLIN);
	CHECK(nm_dispatch(two, 3, show, (u_char *)two) == 3 && shown_count == 3);
	CHECK(shown[0].len == 4196 && shown[0].caplen == 4196 && shown[0].flags == NM_MORE_PKTS);
	CHECK(shown[1].len == 60 && shown[1].caplen == 60 && shown[1].flags == NM_MORE_PKTS);
	CHECK(shown[2].len == 123 && shown[2].caplen == 61 && shown[2].flags == 0);
	CHECK(nm_ring_space(rx) == 1 && two->st.ps_recv == 3);
	CHECK(nm_dispatch(two, -1, show, (u_char *)two) == 1 && shown_count == 4);
	CHECK(shown[3].len == 63 && shown[3].flags == 0 && nm_ring_empty(rx));
	CHECK(nm_dispatch(two, 0, show, (u_char *)two) == 0 && shown_count == 4);
	nm_close(one);
	nm_close(two);
}

/* What is read or sent at one end is not the other's business, whatever it is. */
static void
wrong(void)
{
	struct nmport_d *one = nmport_open("netmap:wrong{a"), *two = nmport_open("netmap:wrong}a");
	struct netmap_ring *tx = NETMAP_TXRING(one->nifp, 0), *rx = NETMAP_RXRING(two->nifp, 0);
	uint32_t idx;

	step(tx, 60, 0);
	CHECK(look(one->fd, POLLOUT, 0) == POLLOUT && look(two->fd, POLLIN, 0) == POLLIN);
	/* Slots that are the other end's do not count, nor does what is written there. */
	tx->slot[0].buf_idx = 0xffffffff;
	CHECK(look(one->fd, POLLOUT, 0) == POLLOUT);
	idx = rx->slot[0].buf_idx;
	rx->slot[0].buf_idx = 1;
	step(rx, 60, 0);
	CHECK(look(two->fd, POLLIN, 0) & POLLERR);
	CHECK(rx->head == 0 && rx->slot[0].buf_idx == 0 && counters(two->fd).resets == 1);
	CHECK((look(one->fd, POLLOUT, 0) & POLLERR) == 0 && counters(one->fd).resets == 0);
	rx->slot[0].buf_idx = idx;
	step(rx, 60, NS_BUF_CHANGED);
	CHECK(look(two->fd, POLLIN, 0) == 0 && tx->slot[0].buf_idx == idx);
	rx->head = rx->cur = nm_ring_next(rx, rx->tail);
	CHECK(look(two->fd, POLLIN, 0) & POLLERR);
	rx->head = 0xffffffff;
	CHECK(look(two->fd, POLLIN, 0) & POLLERR);
	CHECK(rx->head == rx->cur && rx->head == 1 && counters(two->fd).resets == 3);
	nmport_close(two);
	nmport_close(one);
}

int
main(void)
{
	threads();
	full();
	cut();
	dispatched();
	wrong();
	ready();
	return 0;
}
