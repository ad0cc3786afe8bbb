/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef COMMON_H
#define COMMON_H

#include <libnetmap.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(what)                                                                    \
	do {                                                                           \
		if (!(what)) {                                                         \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what);     \
			exit(1);                                                       \
		}                                                                      \
	} while (0)

static inline struct vmlan_netmap_counters
counters(int fd)
{
	struct vmlan_netmap_counters c;

	CHECK(vmlan_netmap_counters(fd, &c) == 0);
	return c;
}

static inline void
say(const char *name, int fd)
{
	struct vmlan_netmap_counters c = counters(fd);

	printf("%s tx %lu rx %lu tx_copies %lu rx_copies %lu swapped %lu resets %lu\n", name,
	    (unsigned long)c.tx_frames, (unsigned long)c.rx_frames, (unsigned long)c.tx_copies,
	    (unsigned long)c.rx_copies, (unsigned long)c.swapped, (unsigned long)c.resets);
}

static inline void
ready(void)
{
	puts("ready");
	fflush(stdout);
}

#endif
