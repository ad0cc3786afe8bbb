// SPDX-License-Identifier: GPL-2.0 OR MIT
/* The transmit ring, and when the device is told of it. */

#include <linux/tcp.h>

#include "vmlan_nic.h"

/* Sent frames are looked for by the sender itself when so many descriptors are under way. */
static bool vn_is_worth_a_look(const struct vn_tx *tx)
{
	return vn_tx_free(tx) < tx->size - tx->size / 8;
}

/* A stopped queue goes on with so many free descriptors; no small ring has many more. */
static u16 vn_tx_ample(const struct vn_tx *tx)
{
	static_assert(VN_TX_MOST < VN_RING_LEAST - 1);
	return min_t(u16, 2 * VN_TX_MOST, tx->size - 1);
}

int vn_tx_init(struct vn_nic *nic)
{
	struct vn_tx *tx = &nic->tx;

	tx->size = nic->ring_size;
	tx->tail = 0;
	tx->clean = 0;
	tx->untold = 0;
	tx->in_flight = false;
	tx->defers = false;
	tx->wanted = false;
	tx->kicked = false;
	tx->context = 0;
	tx->buffers = kvcalloc(tx->size, sizeof(*tx->buffers), GFP_KERNEL);
	tx->ring = dma_alloc_coherent(&nic->pdev->dev, tx->size * 16, &tx->dma, GFP_KERNEL);
	if (!tx->buffers || !tx->ring) {
		vn_tx_free_ring(nic);
		return -ENOMEM;
	}
	return 0;
}

static void vn_tx_unmap(struct vn_nic *nic, struct vn_tx_buffer *buffer)
{
	if (buffer->mapped && buffer->paged)
		dma_unmap_page(&nic->pdev->dev, buffer->dma, buffer->mapped, DMA_TO_DEVICE);
	else if (buffer->mapped)
		dma_unmap_single(&nic->pdev->dev, buffer->dma, buffer->mapped, DMA_TO_DEVICE);
	buffer->mapped = 0;
}

void vn_tx_free_ring(struct vn_nic *nic)
{
	struct vn_tx *tx = &nic->tx;
	u16 at;

	for (at = 0; tx->buffers && at < tx->size; at++) {
		vn_tx_unmap(nic, &tx->buffers[at]);
		dev_kfree_skb_any(tx->buffers[at].skb);
	}
	netdev_tx_reset_queue(vn_queue(nic));
	kvfree(tx->buffers);
	tx->buffers = NULL;
	if (tx->ring)
		dma_free_coherent(&nic->pdev->dev, tx->size * 16, tx->ring, tx->dma);
	tx->ring = NULL;
}

/*
 * Is the device still to serve a kick? Register writes may be posted, and a sleeping device takes
 * its time. As long as it has not sent what the kick was for, it will look at guest_tdt once more
 * before it sleeps.
 */
static bool vn_tx_is_kicked(struct vn_nic *nic)
{
	struct vn_tx *tx = &nic->tx;
	u32 head = csb_sent(&nic->csb);

	if (!tx->kicked || head >= tx->size)
		return false;
	return (s32)(tx->reaped + vn_distance(tx->clean, head, tx->size) - tx->kick) < 0;
}

/* The doorbell: the register, or guest_tdt, and the register only if the device sleeps. */
void vn_tx_tell(struct vn_nic *nic)
{
	struct vn_tx *tx = &nic->tx;

	tx->untold = 0;
	tx->defers = false;
	if (nic->csb.on) {
		if (!csb_send(&nic->csb, tx->tail) || vn_tx_is_kicked(nic)) {
			tx->doorbells_saved++;
			return;
		}
		tx->kicked = true;
		tx->kick = tx->reaped + vn_distance(tx->clean, tx->tail, tx->size);
	}
	tx->doorbells++;
	nic->chip->ring_tx(nic);
}

/* Counts a frame. */
static void vn_tx_measure(struct vn_tx *tx)
{
	unsigned long now = jiffies;

	if (tx->jiffy != now) {
		tx->busy = tx->jiffy + 1 == now && tx->recent >= vn_sc_rate / HZ;
		tx->jiffy = now;
		tx->recent = 0;
	}
	tx->recent++;
}

/* Is the sender faster than the rate below which send combining does nothing? */
static bool vn_tx_is_busy(const struct vn_tx *tx)
{
	return tx->busy || tx->recent >= vn_sc_rate / HZ;
}

/* Frames were described: the device is told now, or by the completion of those before. */
static void vn_tx_offer(struct vn_nic *nic, bool stopped)
{
	struct vn_tx *tx = &nic->tx;

	if (!vn_has(nic, VN_SEND_COMBINING)) {
		vn_tx_tell(nic);
		return;
	}
	if (stopped || !tx->in_flight || tx->untold >= vn_sc_frames || !vn_tx_is_busy(tx)) {
		tx->in_flight = true;
		vn_tx_tell(nic);
		return;
	}
	tx->deferred++;
	if (!tx->defers) {
		tx->defers = true;
		tx->deadline = ktime_add_us(ktime_get(), vn_sc_us);
		vn_timer_within(nic, vn_sc_us);
	}
}

/* Frames were reported, so what was held back leaves, and their report is expected. */
static void vn_tx_combine_done(struct vn_nic *nic)
{
	struct vn_tx *tx = &nic->tx;

	tx->in_flight = tx->untold > 0;
	if (tx->in_flight)
		vn_tx_tell(nic);
}

/* Descriptors that the device has finished, by the CSB; negative: it does not say. */
static int vn_tx_finished(struct vn_nic *nic)
{
	struct vn_tx *tx = &nic->tx;
	u32 head;

	if (!nic->csb.on)
		return -1;
	head = csb_sent(&nic->csb);
	if (head == CSB_NONE)
		return -1;
	if (head >= tx->size || vn_distance(tx->clean, head, tx->size) >
	    vn_distance(tx->clean, tx->tail, tx->size)) {
		vn_broken(nic, "its transmit index is outside of what is under way");
		return 0;
	}
	return vn_distance(tx->clean, head, tx->size);
}

/* The oldest frame's descriptors, if all of them are done; else 0. */
static u16 vn_tx_oldest_done(struct vn_nic *nic, int finished)
{
	struct vn_tx *tx = &nic->tx;
	u16 last, count;

	if (tx->clean == tx->tail)
		return 0;
	last = tx->buffers[tx->clean].last;
	count = vn_distance(tx->clean, last, tx->size) + 1;
	if (finished >= 0)
		return count <= finished ? count : 0;
	return nic->chip->tx_done(nic, last) ? count : 0;
}

/* Gives sent frames back; returns how many. */
static unsigned int vn_tx_reap(struct vn_nic *nic, int budget)
{
	struct vn_tx *tx = &nic->tx;
	unsigned int frames = 0, bytes = 0;
	int finished = vn_tx_finished(nic);
	u16 count;

	while ((count = vn_tx_oldest_done(nic, finished))) {
		struct vn_tx_buffer *first = &tx->buffers[tx->clean];
		struct sk_buff *skb = first->skb;

		if (finished >= 0)
			finished -= count;
		first->skb = NULL;
		while (count--) {
			vn_tx_unmap(nic, &tx->buffers[tx->clean]);
			tx->clean = vn_after(tx->clean, tx->size);
			tx->reaped++;
		}
		frames++;
		bytes += skb->len;
		napi_consume_skb(skb, budget);
	}
	if (!frames)
		return 0;
	netdev_tx_completed_queue(vn_queue(nic), frames, bytes);
	if (netif_tx_queue_stopped(vn_queue(nic)) && vn_tx_free(tx) >= vn_tx_ample(tx) &&
	    test_bit(VN_UP, &nic->state))
		netif_tx_wake_queue(vn_queue(nic));
	return frames;
}

static bool vn_tx_has_sent(struct vn_nic *nic)
{
	return vn_tx_oldest_done(nic, vn_tx_finished(nic));
}

/* The stack waits for sent frames. True: there are some, look at once. */
static bool vn_tx_want(struct vn_nic *nic)
{
	nic->tx.wanted = true;
	nic->tx.wishes++;
	if (nic->csb.on)
		csb_want_sent(&nic->csb);
	else
		nic->chip->enable(nic, nic->chip->sent);
	return vn_tx_has_sent(nic);
}

static void vn_tx_unwant(struct vn_nic *nic)
{
	if (!nic->tx.wanted)
		return;
	nic->tx.wanted = false;
	if (nic->csb.on)
		csb_unwant_sent(&nic->csb);
	else
		nic->chip->disable(nic, nic->chip->sent);
}

/*
 * Where sent frames do not interrupt: somebody has to look for them. If the queue is stopped that
 * is the device's interrupt, else the next sender, or the timer: sockets wait for their room.
 */
static void vn_tx_arrange(struct vn_nic *nic, int budget)
{
	if (!vn_is_lazy(nic))
		return;
	if (!netif_xmit_stopped(vn_queue(nic))) {
		vn_tx_unwant(nic);
	} else if (!nic->tx.wanted && vn_tx_want(nic)) {
		vn_tx_reap(nic, budget);
		if (!netif_xmit_stopped(vn_queue(nic)))
			vn_tx_unwant(nic);
	}
	if (nic->tx.clean != nic->tx.tail)
		vn_timer_within(nic, vn_reap_us);
}

/* NAPI's part; without a budget netpoll's, which may have interrupted a sender on this CPU. */
void vn_tx_poll(struct vn_nic *nic, int budget)
{
	struct netdev_queue *queue = vn_queue(nic);
	struct vn_tx *tx = &nic->tx;

	if (budget)
		__netif_tx_lock(queue, smp_processor_id());
	else if (!__netif_tx_trylock(queue))
		return;
	if (vn_tx_reap(nic, budget) && vn_has(nic, VN_SEND_COMBINING)) {
		vn_tx_combine_done(nic);
	} else if (tx->defers && ktime_compare(ktime_get(), tx->deadline) >= 0) {
		tx->overdue++;
		vn_tx_tell(nic);
	} else if (tx->defers) {
		vn_timer_within(nic, vn_sc_us);
	}
	vn_tx_arrange(nic, budget);
	__netif_tx_unlock(queue);
}

/* Maps a part of a frame; the first is -1. */
static bool vn_tx_map(struct vn_nic *nic, struct sk_buff *skb, int part, u16 at)
{
	struct vn_tx_buffer *buffer = &nic->tx.buffers[at];
	struct device *dma_dev = &nic->pdev->dev;
	u32 len;

	if (part < 0) {
		len = skb_headlen(skb);
		buffer->dma = dma_map_single(dma_dev, skb->data, len, DMA_TO_DEVICE);
	} else {
		const skb_frag_t *frag = &skb_shinfo(skb)->frags[part];

		len = skb_frag_size(frag);
		buffer->dma = skb_frag_dma_map(dma_dev, frag, 0, len, DMA_TO_DEVICE);
	}
	if (dma_mapping_error(dma_dev, buffer->dma))
		return false;
	buffer->mapped = len;
	buffer->paged = part >= 0;
	return true;
}

struct vn_piece {
	u16 at;
	dma_addr_t dma;
	u32 len;
};

/*
 * Maps and describes a frame from *@next on; the first descriptor last, since it may be what the
 * device awaits. *@next is what follows, also when there was no mapping.
 */
static bool vn_tx_describe(struct vn_nic *nic, struct sk_buff *skb, struct vn_describe *how,
			   u16 *next)
{
	struct vn_piece first = {}, held = {};
	int part, parts = skb_shinfo(skb)->nr_frags;

	for (part = -1; part < parts; part++) {
		struct vn_tx_buffer *buffer = &nic->tx.buffers[*next];
		dma_addr_t dma;
		u32 left;

		if (!vn_tx_map(nic, skb, part, *next))
			return false;
		dma = buffer->dma;
		for (left = buffer->mapped; left;) {
			struct vn_piece piece = { *next, dma, min_t(u32, left, VN_TX_PIECE) };

			if (!first.len)
				first = piece;
			else if (held.len)
				nic->chip->tx_fill(nic, held.at, held.dma, held.len, how->rest);
			if (piece.at != first.at)
				held = piece;
			dma += piece.len;
			left -= piece.len;
			*next = vn_after(*next, nic->tx.size);
		}
	}
	if (held.len)
		nic->chip->tx_fill(nic, held.at, held.dma, held.len, how->rest | how->last);
	/* What follows a first descriptor comes before it. */
	dma_wmb();
	nic->chip->tx_fill(nic, first.at, first.dma, first.len,
			   how->first | (held.len ? 0 : how->last));
	return true;
}

/*
 * A part of a frame could not be mapped. Descriptors of the others may be the device's by what they
 * say, and would follow the next frame's.
 */
static void vn_tx_undo(struct vn_nic *nic, u16 begin, u16 end)
{
	struct vn_tx *tx = &nic->tx;

	for (; begin != end; begin = vn_after(begin, tx->size)) {
		memset(tx->ring + begin * 16, 0, 16);
		vn_tx_unmap(nic, &tx->buffers[begin]);
	}
	tx->context = 0;
}

static u32 vn_tx_needed(const struct sk_buff *skb)
{
	u32 part, count = 1 + DIV_ROUND_UP(skb_headlen(skb), VN_TX_PIECE);

	for (part = 0; part < skb_shinfo(skb)->nr_frags; part++)
		count += DIV_ROUND_UP(skb_frag_size(&skb_shinfo(skb)->frags[part]), VN_TX_PIECE);
	return count;
}

static netdev_tx_t vn_tx_drop(struct vn_nic *nic, struct sk_buff *skb)
{
	u64_stats_update_begin(&nic->tx.sync);
	nic->tx.dropped++;
	u64_stats_update_end(&nic->tx.sync);
	dev_kfree_skb_any(skb);
	/* Those before it may not have been told of, as this one was to come. */
	if (nic->tx.untold && test_bit(VN_UP, &nic->state))
		vn_tx_tell(nic);
	return NETDEV_TX_OK;
}

/* The frame from @begin up to @end is described. */
static void vn_tx_sent(struct vn_nic *nic, struct sk_buff *skb, u16 begin, u16 end)
{
	struct vn_tx *tx = &nic->tx;
	struct netdev_queue *queue = vn_queue(nic);
	bool more = netdev_xmit_more() && vn_has(nic, VN_XMIT_MORE);
	u32 frames = skb_is_gso(skb) ? max_t(u32, skb_shinfo(skb)->gso_segs, 1) : 1;
	/* Each segment has headers of its own. */
	u32 headers = frames > 1 ? (frames - 1) * skb_tcp_all_headers(skb) : 0;
	bool tell;

	tx->buffers[begin].skb = skb;
	tx->buffers[begin].last = (end ? end : tx->size) - 1;
	tx->tail = end;
	tx->untold++;
	vn_tx_measure(tx);
	u64_stats_update_begin(&tx->sync);
	tx->packets += frames;
	tx->bytes += skb->len + headers;
	u64_stats_update_end(&tx->sync);
	skb_tx_timestamp(skb);
	if (vn_tx_free(tx) < VN_TX_MOST) {
		tx->stops++;
		netif_tx_stop_queue(queue);
	}
	tell = __netdev_tx_sent_queue(queue, skb->len, more);
	if (tell || netif_xmit_stopped(queue))
		vn_tx_offer(nic, netif_xmit_stopped(queue));
	/* With interrupts for sent frames, NAPI wakes the queue: it takes the lock that we hold. */
	vn_tx_arrange(nic, 0);
}

netdev_tx_t vn_xmit(struct sk_buff *skb, struct net_device *dev)
{
	struct vn_nic *nic = netdev_priv(dev);
	struct vn_tx *tx = &nic->tx;
	struct vn_describe how = {};
	u16 begin = tx->tail, end = begin;
	int extra;

	if (unlikely(!test_bit(VN_UP, &nic->state) || test_bit(VN_BROKEN, &nic->state)))
		return vn_tx_drop(nic, skb);
	if (vn_is_lazy(nic) && vn_is_worth_a_look(tx))
		vn_tx_reap(nic, 0);
	if (unlikely(vn_tx_needed(skb) >= vn_tx_free(tx))) {
		if (vn_tx_needed(skb) > VN_TX_MOST)
			return vn_tx_drop(nic, skb);
		netif_tx_stop_queue(vn_queue(nic));
		vn_tx_arrange(nic, 0);
		return NETDEV_TX_BUSY;
	}
	if (skb_put_padto(skb, ETH_ZLEN))
		return vn_tx_drop(nic, NULL);
	extra = nic->chip->tx_begin(nic, skb, &how);
	if (extra < 0)
		return vn_tx_drop(nic, skb);
	if (extra)
		end = vn_after(end, tx->size);
	if (!vn_tx_describe(nic, skb, &how, &end)) {
		vn_tx_undo(nic, begin, end);
		return vn_tx_drop(nic, skb);
	}
	vn_tx_sent(nic, skb, begin, end);
	return NETDEV_TX_OK;
}

netdev_features_t vn_features_check(struct sk_buff *skb, struct net_device *dev,
				    netdev_features_t features)
{
	/* The length of the headers has eight bits, and so have checksums' places. */
	if (skb->ip_summed == CHECKSUM_PARTIAL && skb_checksum_start_offset(skb) + 60 > 255)
		features &= ~(NETIF_F_CSUM_MASK | NETIF_F_GSO_MASK);
	if (skb_is_gso(skb) &&
	    skb_shinfo(skb)->gso_size > ((struct vn_nic *)netdev_priv(dev))->chip->mss_most)
		features &= ~NETIF_F_GSO_MASK;
	return vlan_features_check(skb, features);
}
