//! The NICs that are compared with each other, and the ways of driving each that are alike in all of them.

use super::Technique;
use crate::exit::Failure;

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
    ("plain", "each frame is announced by a register, each interrupt comes at once"),
    (
        "moderated",
        "interrupts at least 250 us apart: irq_rate_max=4000 at the port, since rtl8139 has no moderation of its own",
    ),
    (
        "mapped",
        "the ring registers are words in shared memory (e1000 alone: all registers of a Realtek chip share one page)",
    ),
    (
        "csb",
        "indices in a block of shared memory; kicks and interrupts only for a side that sleeps (classic rtl8139 has no rings to have \
         indices of)",
    ),
];

/// All of them, the simplest first.
pub(crate) const ALL: &[Chip] = &[
    Chip {
        name: "rtl8139",
        note: "classic mode: four transmit descriptors that are registers, received frames copied out of one ring buffer",
        ways: &[
            way("plain", "model=rtl8139,plus=off", "model=rtl8139,plus=off,writes=waited"),
            way(
                "moderated",
                "model=rtl8139,plus=off,irq_rate_max=4000",
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
                "model=rtl8139,irq_rate_max=4000",
                "model=rtl8139,writes=waited,size=64",
            ),
            way("csb", "model=rtl8139,csb=on", "model=rtl8139,writes=waited,size=64,csb=on"),
        ],
    },
    Chip {
        name: "r8169",
        note: "rings of 256 descriptors (csb: 1,024, the most there can be)",
        ways: &[
            way("plain", "model=r8169", "model=r8169,writes=waited,size=256"),
            way("moderated", "model=r8169,irq_rate_max=4000", "model=r8169,writes=waited,size=256"),
            way("csb", "model=r8169,csb=on", "model=r8169,writes=waited,csb=on,irq=msi,size=1024"),
        ],
    },
    Chip {
        name: "e1000",
        note: "rings of 256 descriptors (csb: 1,024)",
        ways: &[
            way("plain", "model=e1000", "writes=waited"),
            way("moderated", "model=e1000,irq_rate_max=4000", "writes=waited"),
            way("mapped", "model=e1000,doorbell=mapped", "writes=waited,doorbell=mapped"),
            way("csb", "model=e1000,csb=on", "writes=waited,csb=on,irq=msi,size=1024"),
        ],
    },
    Chip {
        name: "virtio-net",
        note: "over vhost-user, rings of 1,024 descriptors; for its registers stand its kicks",
        ways: &[
            Technique { kind: "vhost-user", ..way("plain", "", "") },
            Technique { kind: "vhost-user", ..way("moderated", "irq_rate_max=4000", "") },
        ],
    },
];

const fn way(name: &'static str, switch: &'static str, guest: &'static str) -> Technique {
    Technique { name, note: "", kind: "vfio-user", switch, guest }
}

impl Chip {
    pub(crate) fn way(&self, name: &str) -> Option<&'static Technique> {
        self.ways.iter().find(|way| way.name == name)
    }
}

/// The chips with these names, in the order of the table (all for none); a name that is none is refused with those that are.
pub(crate) fn named(names: &[String]) -> Result<Vec<&'static Chip>, Failure> {
    if let Some(odd) = names.iter().find(|n| !ALL.iter().any(|c| c.name == n.as_str())) {
        let all: Vec<_> = ALL.iter().map(|c| c.name).collect();
        return Err(Failure::Usage(format!("'{odd}' is no NIC: there are {}", all.join(", "))));
    }
    let is_wanted = |c: &Chip| names.is_empty() || names.iter().any(|n| n == c.name);
    Ok(ALL.iter().filter(|c| is_wanted(c)).collect())
}

/// The chip with this name.
#[cfg(test)]
pub(crate) fn one(name: &str) -> Result<&'static Chip, Failure> {
    named(&[name.to_owned()]).map(|found| found[0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::technique;

    #[test]
    fn each_way_is_an_address_that_the_switch_and_the_driver_take() {
        // Until the Realtek chips' drivers are there.
        let there = |c: &&Chip| ["e1000", "virtio-net"].contains(&c.name);
        for chip in ALL.iter().filter(there) {
            assert_eq!(chip.ways[0].name, "plain");
            assert!(technique::ALL.iter().all(|t| t.name != chip.name), "{}", chip.name);
            for t in chip.ways {
                assert!(WAYS.iter().any(|(name, _)| *name == t.name), "{}", t.name);
                let at_switch = format!("a={}", t.at_switch("/tmp/a"));
                at_switch
                    .parse::<crate::address::NamedAddress>()
                    .unwrap_or_else(|e| panic!("{at_switch}: {e}"));
                let at_guest = t.at_guest("/tmp/a", "");
                at_guest
                    .parse::<vmlan_driver::Place>()
                    .unwrap_or_else(|e| panic!("{at_guest}: {e}"));
            }
        }
    }

    #[test]
    fn chips_are_looked_up_in_the_order_of_the_table() {
        let names = |asked: &[&str]| {
            let asked: Vec<_> = asked.iter().map(|&n| n.to_owned()).collect();
            named(&asked).map(|found| found.iter().map(|c| c.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&["e1000", "rtl8139"]).unwrap(), ["rtl8139", "e1000"]);
        assert_eq!(names(&[]).unwrap().len(), ALL.len());
        let Err(Failure::Usage(text)) = names(&["ne2000"]) else { panic!("it is none") };
        assert!(text.contains("ne2000") && text.contains("r8169"), "{text}");
        assert!(one("e1000").unwrap().way("mapped").is_some());
        assert!(one("r8169").unwrap().way("mapped").is_none());
    }
}
