//! The NICs that are compared with each other, and the ways of driving each that are alike in all
//! of them.

use super::Technique;
use crate::failure::Failure;

/// A NIC.
#[derive(Debug)]
pub(crate) struct Chip {
    /// In tables, options and files. None of them is the name of a [`Technique`].
    pub(crate) name: &'static str,
    /// What it is, below the tables.
    pub(crate) note: &'static str,
    /// How it can be driven; the first is `plain`.
    pub(crate) ways: &'static [Technique],
}

/// What a way means whatever the chip is, for below the tables.
pub(crate) const WAYS: [(&str, &str); 4] = [
    (
        "plain",
        "each frame is announced by a register, each interrupt comes at once; as in all rows, \
            register writes wait for their answer",
    ),
    (
        "moderated",
        "interrupts at least 62.5 us apart: irq_rate_max=16000 at the port, since rtl8139 has no \
            moderation of its own",
    ),
    (
        "mapped",
        "the ring registers are words in shared memory (e1000 alone: all registers of a Realtek \
            chip share one page)",
    ),
    (
        "csb",
        "indices in a block of shared memory; kicks and interrupts only for a side that sleeps \
         (classic rtl8139 has no rings to have indices of)",
    ),
];

/// All of them, the simplest first.
pub(crate) const ALL: &[Chip] = &[
    Chip {
        name: "rtl8139",
        note: "classic mode: four transmit descriptors that are registers, received frames copied \
            out of one ring buffer",
        ways: &[
            way("plain", "model=rtl8139,plus=off", "model=rtl8139,plus=off,writes=waited"),
            way(
                "moderated",
                "model=rtl8139,plus=off,irq_rate_max=16000",
                "model=rtl8139,plus=off,writes=waited",
            ),
        ],
    },
    Chip {
        name: "rtl8139-c+",
        note: "its C+ mode: rings of 64 descriptors, the most there can be",
        ways: &[
            way("plain", "model=rtl8139", "model=rtl8139,writes=waited,size=64"),
            way(
                "moderated",
                "model=rtl8139,irq_rate_max=16000",
                "model=rtl8139,writes=waited,size=64",
            ),
            way("csb", "model=rtl8139,csb=on", "model=rtl8139,writes=waited,size=64,csb=on"),
        ],
    },
    Chip {
        name: "r8169",
        note: "rings of 256 descriptors",
        ways: &[
            way("plain", "model=r8169", "model=r8169,writes=waited,size=256"),
            way(
                "moderated",
                "model=r8169,irq_rate_max=16000",
                "model=r8169,writes=waited,size=256",
            ),
            way("csb", "model=r8169,csb=on", "model=r8169,writes=waited,size=256,csb=on"),
        ],
    },
    Chip {
        name: "e1000",
        note: "rings of 256 descriptors",
        ways: &[
            way("plain", "model=e1000", "writes=waited"),
            way("moderated", "model=e1000,irq_rate_max=16000", "writes=waited"),
            way("mapped", "model=e1000,doorbell=mapped", "writes=waited,doorbell=mapped"),
            way("csb", "model=e1000,csb=on", "writes=waited,csb=on"),
        ],
    },
    Chip {
        name: "e1000e",
        note: "rings of 256 descriptors, MSI-X",
        ways: &[
            way("plain", "model=e1000e", "model=e1000e,writes=waited"),
            way("moderated", "model=e1000e,irq_rate_max=16000", "model=e1000e,writes=waited"),
            way(
                "mapped",
                "model=e1000e,doorbell=mapped",
                "model=e1000e,writes=waited,doorbell=mapped",
            ),
        ],
    },
    Chip {
        name: "vmxnet3",
        note: "rings of 512 descriptors, MSI-X; it says in memory which doorbells it wants",
        ways: &[
            way("plain", "model=vmxnet3", "model=vmxnet3,writes=waited"),
            way("moderated", "model=vmxnet3,irq_rate_max=16000", "model=vmxnet3,writes=waited"),
            way(
                "mapped",
                "model=vmxnet3,doorbell=mapped",
                "model=vmxnet3,writes=waited,doorbell=mapped",
            ),
        ],
    },
    Chip {
        name: "virtio-net",
        note: "over vhost-user, rings of 1,024 descriptors; for its registers stand its kicks",
        ways: &[
            Technique { kind: "vhost-user", ..way("plain", "", "") },
            Technique { kind: "vhost-user", ..way("moderated", "irq_rate_max=16000", "") },
        ],
    },
];

const fn way(name: &'static str, switch: &'static str, guest: &'static str) -> Technique {
    Technique { name, from: None, note: "", kind: "vfio-user", switch, guest }
}

impl Chip {
    pub(crate) fn way(&self, name: &str) -> Option<&'static Technique> {
        self.ways.iter().find(|way| way.name == name)
    }
}

/// Some of the chips, and some of their ways.
#[derive(Debug)]
pub(crate) struct Choice {
    pub(crate) chips: Vec<&'static Chip>,
    ways: Vec<&'static str>,
    /// Chips, and ways, were asked for by name.
    named: (bool, bool),
}

impl Choice {
    /// The chips and the ways with these names, in the order of the tables (all chips for none, all
    /// ways for none); a name that is neither is refused with those that are.
    pub(crate) fn of(names: &[impl AsRef<str>]) -> Result<Self, Failure> {
        let is = |known: &str| names.iter().any(|n| n.as_ref() == known);
        let known = || ALL.iter().map(|c| c.name).chain(WAYS.map(|(name, _)| name));
        if let Some(odd) = names.iter().find(|n| known().all(|name| name != n.as_ref())) {
            let all: Vec<_> = known().collect();
            let text =
                format!("'{}' is neither a NIC nor a way to drive one: there are ", odd.as_ref());
            return Err(Failure::Usage(text + &all.join(", ")));
        }
        let chips = ALL.iter().filter(|c| is(c.name)).collect::<Vec<_>>();
        let ways = WAYS.map(|(name, _)| name).into_iter().filter(|w| is(w)).collect::<Vec<_>>();
        Ok(Self {
            named: (!chips.is_empty(), !ways.is_empty()),
            chips: if chips.is_empty() { ALL.iter().collect() } else { chips },
            ways: if ways.is_empty() { WAYS.map(|(name, _)| name).into() } else { ways },
        })
    }

    /// The chips that can be driven in this way, if it is among the chosen ones.
    pub(crate) fn with<'a>(
        &'a self,
        way: &'a str,
    ) -> impl Iterator<Item = (&'static Chip, &'static Technique)> + 'a {
        let chips = self.chips.iter().filter(move |_| self.ways.contains(&way));
        chips.filter_map(move |&chip| Some((chip, chip.way(way)?)))
    }

    /// What was asked for by name and is not there where the ways are `ways`, each with the reason.
    pub(crate) fn left_out(&self, ways: &[&str]) -> Vec<String> {
        let (chips, named) = self.named;
        let mut all = Vec::new();
        for way in self.ways.iter().filter(|_| named) {
            if !ways.contains(way) {
                all.push(format!("{way} (there are {})", ways.join(", ")));
                continue;
            }
            for chip in self.chips.iter().filter(|c| chips && c.way(way).is_none()) {
                let its: Vec<_> = chip.ways.iter().map(|way| way.name).collect();
                all.push(format!("{} {way} (it has {})", chip.name, its.join(", ")));
            }
        }
        all
    }

    pub(crate) fn has(&self, chip: &str) -> bool {
        self.chips.iter().any(|c| c.name == chip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::technique;

    #[test]
    fn each_way_is_an_address_that_the_switch_and_the_driver_take() {
        for chip in ALL {
            assert_eq!(chip.ways[0].name, "plain");
            assert!(technique::ALL.iter().all(|t| t.name != chip.name), "{}", chip.name);
            for t in chip.ways {
                assert!(WAYS.iter().any(|(name, _)| *name == t.name), "{}", t.name);
                let at_switch = format!("a={}", t.at_switch("/tmp/a"));
                at_switch
                    .parse::<vmlan_config::address::NamedAddress>()
                    .unwrap_or_else(|e| panic!("{at_switch}: {e}"));
                let at_guest = t.at_guest("/tmp/a", "");
                at_guest
                    .parse::<vmlan_transport::Address>()
                    .unwrap_or_else(|e| panic!("{at_guest}: {e}"));
            }
        }
    }

    #[test]
    fn chips_and_ways_are_chosen_in_the_order_of_the_tables() {
        let names = |asked: &[&str], way| {
            let choice = Choice::of(asked).unwrap();
            choice.with(way).map(|(chip, way)| (chip.name, way.name)).collect::<Vec<_>>()
        };
        let both = [("r8169", "csb"), ("e1000", "csb")];
        assert_eq!(names(&["e1000", "r8169"], "csb"), both);
        assert_eq!(names(&["csb", "e1000", "r8169"], "csb"), both);
        assert_eq!(names(&["csb", "e1000"], "plain"), []);
        assert_eq!(
            names(&[], "mapped"),
            [("e1000", "mapped"), ("e1000e", "mapped"), ("vmxnet3", "mapped")]
        );
        assert_eq!(names(&[], "plain").len(), ALL.len());
        let out = |asked: &[&str], ways: &[&str]| Choice::of(asked).unwrap().left_out(ways);
        assert_eq!(out(&["moderated"], &["plain", "csb"]), ["moderated (there are plain, csb)"]);
        let some = ["rtl8139", "e1000", "csb", "plain"];
        assert_eq!(out(&some, &["plain", "csb"]), ["rtl8139 csb (it has plain, moderated)"]);
        for asked in [&["csb"][..], &["rtl8139"], &[]] {
            assert!(out(asked, &["csb"]).is_empty(), "not by name: {asked:?}");
        }
        let Err(Failure::Usage(text)) = Choice::of(&["ne2000"]) else { panic!("it is none") };
        for word in ["ne2000", "r8169", "mapped"] {
            assert!(text.contains(word), "{text}");
        }
    }
}
