//! Which of the positions that follow the used index are still held by their receivers.

const WORDS: usize = 4;

/// A set of numbers below 256.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Held([u64; WORDS]);

impl Held {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }

    #[inline]
    pub(super) fn contains(&self, at: u16) -> bool {
        self.0.get(usize::from(at >> 6)).is_some_and(|w| w >> (at & 63) & 1 != 0)
    }

    #[inline]
    pub(super) fn insert(&mut self, at: u16) {
        if let Some(w) = self.0.get_mut(usize::from(at >> 6)) {
            *w |= 1 << (at & 63);
        }
    }

    pub(super) fn remove(&mut self, at: u16) {
        if let Some(w) = self.0.get_mut(usize::from(at >> 6)) {
            *w &= !(1 << (at & 63));
        }
    }

    /// The smallest member.
    pub(super) fn first(&self) -> Option<u16> {
        let (base, w) = (0u16..).step_by(64).zip(self.0).find(|(_, w)| *w != 0)?;
        (base..).zip(0..64).find(|(_, bit)| w >> bit & 1 != 0).map(|(at, _)| at)
    }

    /// Subtracts `n` from each member; those below vanish.
    pub(super) fn shift(&mut self, n: u16) {
        for _ in 0..n >> 6 {
            let [_, b, c, d] = self.0;
            self.0 = [b, c, d, 0];
        }
        let n = n & 63;
        if n > 0 {
            let [a, b, c, d] = self.0;
            let join = |lo: u64, hi: u64| lo >> n | hi << (64 - n);
            self.0 = [join(a, b), join(b, c), join(c, d), d >> n];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behaves_as_a_set_of_numbers() {
        for n in [0u16, 1, 63, 64, 65, 127, 128, 200, 255, 256] {
            let mut held = Held::default();
            let members = [0u16, 1, 62, 63, 64, 100, 128, 191, 192, 255];
            members.iter().for_each(|m| held.insert(*m));
            held.remove(100);
            held.shift(n);
            for at in 0..256u16 {
                let want = at.checked_add(n).is_some_and(|m| m != 100 && members.contains(&m));
                assert_eq!(held.contains(at), want, "{at} after a shift of {n}");
            }
            assert_eq!(held.first(), (0..256).find(|at| held.contains(*at)));
            assert_eq!(held.is_empty(), held.first().is_none());
        }
    }
}
