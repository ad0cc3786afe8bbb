//! A vmxnet3's wishes for doorbells: words of a queue in memory that the device writes. For frames
//! it is a threshold, for buffers a flag.
//!
//! The frames and buffers themselves are published by generation bits in their descriptors, each by
//! a store with release. Linux's driver has no full fence between that store and the load of the
//! wish, so a device that goes to sleep must look once more, later. This one has it, unless it is
//! told to be like Linux's.

/// The words of a queue that steer its doorbells.
pub trait ThresholdFields {
    /// A full fence; none in a driver that shall be like Linux's.
    fn fence(&self);
    /// `txNumDeferred`: frames that were not rung for. The driver's own word.
    fn deferred(&self) -> u32;
    /// See [`Self::deferred`].
    fn set_deferred(&self, frames: u32);
    /// `txThreshold`, relaxed: with so many the device wants a doorbell.
    fn threshold(&self) -> u32;
    /// `updateRxProd`, relaxed: the device wants a doorbell for buffers.
    fn update_rx_prod(&self) -> bool;
}

/// So many frames more are published. True: ring TXPROD.
#[inline]
#[must_use]
pub fn send(words: &impl ThresholdFields, frames: u32) -> bool {
    let deferred = words.deferred().saturating_add(frames);
    words.fence();
    let rings = deferred >= words.threshold();
    words.set_deferred(if rings { 0 } else { deferred });
    rings
}

/// Buffers were published. True: ring RXPROD.
#[inline]
#[must_use]
pub fn refill(words: &impl ThresholdFields) -> bool {
    words.fence();
    words.update_rx_prod()
}
