/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * echo ADDRESS COUNT: sends so many frames back to where they came from, by nm_open, poll,
 * nm_dispatch and nm_inject.
 */
#include "common.h"

static struct nm_desc *port;
static int left;

static void
answer(u_char *arg, const struct nm_pkthdr *head, const u_char *frame)
{
	u_char copy[2048];

	(void)arg;
	CHECK(head->len >= 14 && head->len <= sizeof(copy) && head->caplen == head->len);
	memcpy(copy, frame, head->len);
	memcpy(copy, frame + 6, 6);
	memcpy(copy + 6, frame, 6);
	while (nm_inject(port, copy, head->len) == 0)
		CHECK(ioctl(port->fd, NIOCTXSYNC, NULL) == 0);
	left--;
}

int
main(int argc, char **argv)
{
	struct pollfd fd = {.events = POLLIN};

	CHECK(argc == 3);
	left = atoi(argv[2]);
	port = nm_open(argv[1], NULL, 0, NULL);
	CHECK(port != NULL && IS_NETMAP_DESC(port));
	CHECK(port->req.nr_rx_rings == 1 && port->req.nr_tx_slots > 1);
	ready();
	fd.fd = NETMAP_FD(port);
	while (left > 0) {
		CHECK(poll(&fd, 1, 60000) == 1);
		CHECK(fd.revents == POLLIN);
		CHECK(nm_dispatch(port, 8, answer, NULL) > 0);
	}
	while (nm_tx_pending(NETMAP_TXRING(port->nifp, 0)))
		CHECK(ioctl(port->fd, NIOCTXSYNC) == 0);
	say("echo", port->fd);
	CHECK(nm_close(port) == 0);
	return 0;
}
