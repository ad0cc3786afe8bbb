/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The shared status block (CSB): the driver's side. docs/csb.md says what each word means.
 *
 * Two rules hold for each of the four exchanges: publish, full fence, read the other side's wish;
 * and before sleeping: state the wish, full fence, look again. tests/tests/linux_module.rs compares
 * the offsets with the Rust driver's, and data/nic/tests/loom runs this order of accesses against
 * the device's.
 */
#ifndef VMLAN_CSB_H
#define VMLAN_CSB_H

#include <linux/types.h>
#include <asm/barrier.h>

#define CSB_BYTES		4096
#define CSB_SUBSYSTEM		0x1101

/* Written by the guest. */
#define CSB_GUEST_TDT		0x00
#define CSB_GUEST_NEED_TXKICK	0x04
#define CSB_GUEST_NEED_RXKICK	0x08
#define CSB_GUEST_CSB_ON	0x0c
#define CSB_GUEST_RDT		0x10
#define CSB_GUEST_TXKICK_AT	0x14
#define CSB_GUEST_USE_MSIX	0x18
/* Written by the device; the guest sets what they are at first. */
#define CSB_HOST_TDH		0x40
#define CSB_HOST_NEED_TXKICK	0x44
#define CSB_HOST_TXCYCLES_LIM	0x48
#define CSB_HOST_NEED_RXKICK	0x54
#define CSB_HOST_RXKICK_AT	0x5c

/* An index that is none. */
#define CSB_NONE		0xffffffffU

struct csb {
	__le32 *words;
	dma_addr_t dma;
	bool on;
};

static inline void csb_set(const struct csb *csb, unsigned int at, u32 value)
{
	WRITE_ONCE(csb->words[at / 4], cpu_to_le32(value));
}

static inline u32 csb_get(const struct csb *csb, unsigned int at)
{
	return le32_to_cpu(READ_ONCE(csb->words[at / 4]));
}

static inline void csb_publish(const struct csb *csb, unsigned int at, u32 index)
{
	/* After whatever the index is about. */
	virt_store_release(&csb->words[at / 4], cpu_to_le32(index));
}

/* For a device that does not know the block yet. @by_message: it interrupts by MSI. */
static inline void csb_init(struct csb *csb, bool by_message)
{
	unsigned int at;

	for (at = 0; at < CSB_BYTES; at += 4)
		csb_set(csb, at, 0);
	csb_set(csb, CSB_GUEST_TXKICK_AT, CSB_NONE);
	csb_set(csb, CSB_GUEST_USE_MSIX, by_message);
	csb_set(csb, CSB_HOST_TDH, CSB_NONE);
	csb_set(csb, CSB_HOST_NEED_TXKICK, 1);
	csb_set(csb, CSB_HOST_TXCYCLES_LIM, 1);
	csb_set(csb, CSB_HOST_RXKICK_AT, CSB_NONE);
	csb->on = false;
}

/* From now on the device reads the indexes here. They are what TDT and RDT say. */
static inline void csb_start(struct csb *csb, u32 tdt, u32 rdt)
{
	csb_set(csb, CSB_HOST_TDH, CSB_NONE);
	csb_set(csb, CSB_GUEST_NEED_TXKICK, 0);
	csb_set(csb, CSB_GUEST_NEED_RXKICK, 0);
	csb_publish(csb, CSB_GUEST_TDT, tdt);
	csb_publish(csb, CSB_GUEST_RDT, rdt);
	csb_publish(csb, CSB_GUEST_CSB_ON, 1);
	csb->on = true;
}

/* Back to the registers: write TDT and RDT after this. */
static inline void csb_stop(struct csb *csb)
{
	csb_publish(csb, CSB_GUEST_CSB_ON, 0);
	csb->on = false;
}

/* Frames up to @tail are described. True: ring the doorbell, for the device sleeps. */
static inline bool csb_send(const struct csb *csb, u32 tail)
{
	csb_publish(csb, CSB_GUEST_TDT, tail);
	/* Published before the wish is read. */
	virt_mb();
	/* Bit 0 is the wish; later devices use the others for themselves. */
	return csb_get(csb, CSB_HOST_NEED_TXKICK) & 1;
}

/* Descriptors before this are sent. Anything may stand there. */
static inline u32 csb_sent(const struct csb *csb)
{
	/* Before the frames' buffers are looked at. */
	return le32_to_cpu(virt_load_acquire(&csb->words[CSB_HOST_TDH / 4]));
}

/* States the wish for an interrupt when frames are sent. Look again after this. */
static inline void csb_want_sent(const struct csb *csb)
{
	csb_set(csb, CSB_GUEST_NEED_TXKICK, 1);
	/* Stated before the second look. */
	virt_mb();
}

static inline void csb_unwant_sent(const struct csb *csb)
{
	csb_set(csb, CSB_GUEST_NEED_TXKICK, 0);
}

/* Would a tail that goes from @old to @new one by one meet @at, after a move? */
static inline bool csb_passed(u32 at, u32 size, u32 old, u32 new)
{
	u32 to_at, to_new;

	if (at >= size || at == old)
		return false;
	to_at = at >= old ? at - old : at + size - old;
	to_new = new >= old ? new - old : new + size - old;
	return to_at <= to_new;
}

/* Buffers from @old up to @new are the device's. True: ring, for the device waits for them. */
static inline bool csb_refill(const struct csb *csb, u32 size, u32 old, u32 new)
{
	csb_publish(csb, CSB_GUEST_RDT, new);
	/* Published before the wish is read. */
	virt_mb();
	return csb_passed(csb_get(csb, CSB_HOST_RXKICK_AT), size, old, new);
}

/* States the wish for an interrupt when a frame is received. Look again after this. */
static inline void csb_want_received(const struct csb *csb)
{
	csb_set(csb, CSB_GUEST_NEED_RXKICK, 1);
	/* Stated before the second look. */
	virt_mb();
}

static inline void csb_unwant_received(const struct csb *csb)
{
	csb_set(csb, CSB_GUEST_NEED_RXKICK, 0);
}

#endif
