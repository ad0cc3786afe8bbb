//! Points at which a test has the thread at hand die as a killed process does: nothing is cleaned
//! up behind it. Elsewhere they are nothing.

#[cfg(test)]
thread_local! {
    static LEFT: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// A point.
#[cfg(test)]
pub fn point() {
    LEFT.with(|left| match left.get() {
        0 => {}
        1 => {
            left.set(0);
            std::panic::resume_unwind(Box::new(()));
        }
        n => left.set(n - 1),
    });
}

/// A point.
#[cfg(not(test))]
#[inline]
pub fn point() {}

/// Dies at the so-manieth point that `live` comes to, counted from 1. True: it has not come that
/// far.
#[cfg(test)]
pub fn lives(point: u32, live: impl FnOnce()) -> bool {
    LEFT.with(|left| left.set(point));
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(live)).is_ok();
    let reached = LEFT.with(|left| left.replace(0)) == 0;
    assert!(done || reached, "a test has failed in it");
    done
}
