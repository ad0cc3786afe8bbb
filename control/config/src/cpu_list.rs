//! CPUs by number, as the kernel's lists have them: `0-3,8`.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};

/// More than any kernel has.
const MOST: usize = 8192;

/// CPUs, in the order in which they were named. Each is there once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuList(Vec<usize>);

impl CpuList {
    /// Their numbers.
    pub fn numbers(&self) -> &[usize] {
        &self.0
    }
}

impl FromStr for CpuList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("cpus={text}: write numbers and ranges of CPUs, like 2,4-7");
        let number = |n: &str| n.parse().ok().filter(|n| *n < MOST && !text.contains('+'));
        let range = |part: &str| -> Option<RangeInclusive<usize>> {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(number(first)?..=number(last)?).filter(|range| !range.is_empty())
        };
        let mut all = Vec::new();
        for part in text.split(',') {
            for cpu in range(part).ok_or_else(wrong)? {
                if all.contains(&cpu) {
                    return Err(format!("cpus={text}: CPU {cpu} is there twice"));
                }
                all.push(cpu);
            }
        }
        Ok(Self(all))
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.as_slice();
        let mut comma = "";
        while let Some(first) = rest.first() {
            let run = rest.iter().zip(*first..).take_while(|(cpu, n)| *cpu == n).count();
            match run {
                1 => write!(f, "{comma}{first}")?,
                _ => write!(f, "{comma}{first}-{}", first + run - 1)?,
            }
            rest = rest.get(run..).unwrap_or_default();
            comma = ",";
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for CpuList {
    fn deserialize<D: Deserializer<'de>>(text: D) -> Result<Self, D::Error> {
        String::deserialize(text)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written() {
        for (text, numbers, written) in [
            ("0", vec![0], "0"),
            ("4,2,3", vec![4, 2, 3], "4,2-3"),
            ("2,4-7,9", vec![2, 4, 5, 6, 7, 9], "2,4-7,9"),
            ("5-5", vec![5], "5"),
        ] {
            let list: CpuList = text.parse().unwrap();
            assert_eq!((list.numbers(), list.to_string().as_str()), (&numbers[..], written));
        }
    }

    #[test]
    fn what_is_no_list_is_refused_by_name() {
        for text in ["", ",", "a", "1,", "3-1", "-1", "1-", "+1", "1-2-3", "8192", "0 ,1", "0x1"] {
            let said = text.parse::<CpuList>().unwrap_err();
            assert_eq!(said, format!("cpus={text}: write numbers and ranges of CPUs, like 2,4-7"));
        }
        let said = "1-3,2".parse::<CpuList>().unwrap_err();
        assert_eq!(said, "cpus=1-3,2: CPU 2 is there twice");
    }
}
