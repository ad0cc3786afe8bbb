/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * names ADDRESS: what netmap refuses, with netmap's errors; and who may have rings for itself.
 */
#include "common.h"

static char name[1024];

static const char *
with(const char *address, const char *suffix)
{
	snprintf(name, sizeof(name), "netmap:%s%s", address, suffix);
	return name;
}

/* By both calls. */
static void
refused(const char *what, int why)
{
	errno = 0;
	if (nmport_open(what) != NULL || errno != why) {
		fprintf(stderr, "nmport_open %s: %s\n", what, strerror(errno));
		exit(1);
	}
	errno = 0;
	if (nm_open(what, NULL, 0, NULL) != NULL || errno != why) {
		fprintf(stderr, "nm_open %s: %s\n", what, strerror(errno));
		exit(1);
	}
}

static void
modes(const char *address)
{
	static const uint32_t none[] = {NR_REG_NULL, 9, 15, 16, 0xffffffff};
	static const uint64_t flags[] = {NR_MONITOR_TX, NR_MONITOR_RX, NR_ZCOPY_MON};
	struct nmport_d *d = nmport_prepare(with(address, ""));
	struct nm_desc *pipe;
	struct nmreq req;
	unsigned int n;

	CHECK(d != NULL);
	for (n = 0; n < sizeof(none) / sizeof(none[0]); n++) {
		d->reg.nr_mode = none[n];
		CHECK(nmport_open_desc(d) == -1 && errno == EINVAL && d->fd == -1);
	}
	/* Pipes are asked for by name here, by number there. */
	d->reg.nr_mode = NR_REG_PIPE_MASTER;
	CHECK(nmport_open_desc(d) == -1 && errno == EINVAL);
	d->reg.nr_mode = NR_REG_ONE_NIC;
	d->reg.nr_ringid = 1;
	CHECK(nmport_open_desc(d) == -1 && errno == EINVAL);
	d->reg.nr_mode = NR_REG_ONE_SW;
	CHECK(nmport_open_desc(d) == -1 && errno == EINVAL);
	d->reg.nr_mode = NR_REG_ALL_NIC;
	d->reg.nr_mem_id = 2;
	CHECK(nmport_open_desc(d) == -1 && errno == EINVAL);
	d->reg.nr_mem_id = 1;
	for (n = 0; n < 3; n++) {
		d->reg.nr_flags = flags[n];
		CHECK(nmport_open_desc(d) == -1 && errno == EINVAL);
	}
	nmport_undo_prepare(d);
	memset(&req, 0, sizeof(req));
	req.nr_flags = NR_REG_PIPE_SLAVE;
	/* The name's word counts, and that is the master. */
	pipe = nm_open("netmap:x{1", &req, 0, NULL);
	CHECK(pipe != NULL && (pipe->req.nr_flags & NR_REG_MASK) == NR_REG_PIPE_MASTER);
	nm_close(pipe);
	CHECK(vmlan_netmap_open("x{1", NR_REG_PIPE_MASTER, 1, 0, NULL) == -1 && errno == EFAULT);
}

/* Slots come from another descriptor. Rings and flags do, if it is one of the same port. */
static void
inherited(void)
{
	struct nm_desc from, *d, *parent;

	memset(&from, 0, sizeof(from));
	from.self = &from;
	strcpy(from.req.nr_name, "from");
	from.req.nr_tx_slots = from.req.nr_rx_slots = 64;
	d = nm_open("netmap:own{1", NULL, NM_OPEN_RING_CFG, &from);
	CHECK(d != NULL && d->req.nr_tx_slots == 64 && strcmp(d->req.nr_name, "own") == 0);
	nm_close(d);
	CHECK(nm_open("netmap:own{1", NULL, NM_OPEN_IFNAME, &from) == NULL && errno == EINVAL);
	d = nm_open("netmap:own{1", NULL, NM_OPEN_IFNAME, NULL);
	CHECK(d != NULL);
	nm_close(d);
	/* As programs with a thread for each ring do: the descriptor of another thread, changed. */
	parent = nm_open("netmap:own-of-a-long-name{1", NULL, 0, NULL);
	CHECK(parent != NULL);
	from = *parent;
	from.self = &from;
	from.req.nr_flags = NR_REG_PIPE_SLAVE | NR_TX_RINGS_ONLY;
	from.req.nr_ringid = 2 | NETMAP_NO_TX_POLL;
	d = nm_open("netmap:own-of-a-long-name{1", NULL, NM_OPEN_IFNAME | NETMAP_DO_RX_POLL, &from);
	CHECK(d != NULL && d->req.nr_flags == from.req.nr_flags);
	CHECK(d->req.nr_ringid == (2 | NETMAP_NO_TX_POLL | NETMAP_DO_RX_POLL));
	CHECK(strcmp(d->req.nr_name, "own-of-a-long-n") == 0);
	CHECK(d->first_tx_ring == 0 && d->first_rx_ring > d->last_rx_ring);
	nm_close(d);
	nm_close(parent);
}

/* A ring that somebody has for itself, or that somebody has. */
static void
exclusive(const char *one, const char *same, const char *other)
{
	struct nmport_d *d = nmport_open(one), *e;

	CHECK(d != NULL);
	CHECK(nmport_open(same) == NULL && errno == EBUSY);
	e = nmport_open(other);
	CHECK(e != NULL);
	nmport_close(e);
	nmport_close(d);
	d = nmport_open(same);
	CHECK(d != NULL && nmport_open(one) == NULL && errno == EBUSY);
	nmport_close(d);
}

/* Only one direction. */
static void
halves(void)
{
	struct nmport_d *tx = nmport_open("netmap:half{1/xT@1");
	struct nmport_d *rx = nmport_open("netmap:half}1/R");
	struct pollfd fds[2];

	CHECK(tx != NULL && rx != NULL);
	CHECK(tx->first_tx_ring == 0 && tx->last_tx_ring == 0);
	CHECK(tx->first_rx_ring > tx->last_rx_ring);
	CHECK(rx->first_rx_ring == 0 && rx->last_rx_ring == 0);
	CHECK(rx->first_tx_ring > rx->last_tx_ring);
	CHECK(tx->nifp->ring_ofs[0] != 0 && tx->nifp->ring_ofs[1] == 0);
	CHECK(rx->nifp->ring_ofs[0] == 0 && rx->nifp->ring_ofs[1] != 0);
	CHECK(nmport_inject(tx, "0123456789abcdef", 16) == 0);
	fds[0] = (struct pollfd){tx->fd, POLLIN | POLLOUT, 0};
	fds[1] = (struct pollfd){rx->fd, POLLIN | POLLOUT, 0};
	CHECK(poll(fds, 2, 60000) == 2 && fds[0].revents == POLLOUT && fds[1].revents == POLLIN);
	nmport_close(tx);
	nmport_close(rx);
}

/* As many as there are, for whoever wants more. */
static void
greedy(void)
{
	struct nmport_d *d = nmport_prepare("netmap:greedy{1"), *e = nmport_prepare("netmap:greedy{1");
	struct netmap_ring *ring;
	uint32_t idx, count;

	d->reg.nr_extra_bufs = e->reg.nr_extra_bufs = 0xffffffff;
	CHECK(nmport_open_desc(d) == 0 && nmport_open_desc(e) == 0);
	CHECK(d->reg.nr_extra_bufs > 30000 && d->reg.nr_extra_bufs < 0xffffffff);
	CHECK(e->reg.nr_extra_bufs == 0 && e->nifp->ni_bufs_head == 0);
	ring = NETMAP_TXRING(d->nifp, 0);
	for (count = 0, idx = d->nifp->ni_bufs_head; idx != 0; count++)
		idx = *(uint32_t *)NETMAP_BUF(ring, idx);
	CHECK(count == d->reg.nr_extra_bufs);
	nmport_close(e);
	nmport_close(d);
}

/* What the program has in its list when it closes is what is given back. */
static void
extra(unsigned int n)
{
	struct nmport_d *d = nmport_prepare("netmap:extra{1");
	struct netmap_ring *ring;
	uint32_t idx, *head, count;

	d->reg.nr_extra_bufs = 30000;
	CHECK(nmport_open_desc(d) == 0 && d->reg.nr_extra_bufs == 30000);
	ring = NETMAP_TXRING(d->nifp, 0);
	for (count = 0, idx = d->nifp->ni_bufs_head; idx != 0; count++)
		idx = *(uint32_t *)NETMAP_BUF(ring, idx);
	CHECK(count == 30000);
	/* One of them changes places with one of the ring. */
	head = &d->nifp->ni_bufs_head;
	idx = *head;
	*head = ring->slot[5].buf_idx;
	ring->slot[5].buf_idx = idx;
	head = (uint32_t *)NETMAP_BUF(ring, *head);
	*head = *(uint32_t *)NETMAP_BUF(ring, idx);
	/* The last two lists go round, and lead nowhere; what such a program loses is lost. */
	if (n == 20)
		*(uint32_t *)NETMAP_BUF(ring, *head) = *head;
	if (n == 21)
		*head = 0xfffffff0;
	nmport_close(d);
}

int
main(int argc, char **argv)
{
	static const char *const wrong[] = {
		"^^", "^x", "^4095", "^99999", "^1", "*1", "**", "*/", "^{1", "^/", "^/q", "^/r", "^@",
		"^@0", "^@2", "^@x", "{", "}", "{1{2", "{1}", "{1^", "{1 ", "{4095x ", "{1/zT", "{1/t",
	};
	const char *address;
	unsigned int n;

	CHECK(argc == 2);
	address = argv[1];
	for (n = 0; n < sizeof(wrong) / sizeof(wrong[0]); n++)
		refused(with(address, wrong[n]), EINVAL);
	refused("netmap:", EINVAL);
	refused("netmap:^", EINVAL);
	refused("netmap:{1", EINVAL);
	refused("netmap:nonsense", EINVAL);
	refused("netmap:nonsense^", EINVAL);
	refused(with(address, ",host=much-too-long-for-a-name^"), EINVAL);
	refused(with(address, ",host=lo^"), EINVAL);
	/* A name of a pipe that is no number is for the newer calls. */
	CHECK(nm_open("netmap:x{abc", NULL, 0, NULL) == NULL && errno == EINVAL);
	CHECK(nm_open("netmap:x{4095", NULL, 0, NULL) == NULL && errno == EINVAL);
	inherited();
	modes(address);
	exclusive("netmap:ex{1/x", "netmap:ex{1", "netmap:ex}1");
	halves();
	greedy();
	for (n = 0; n < 22; n++)
		extra(n);
	ready();
	return 0;
}
