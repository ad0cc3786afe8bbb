//! The figures of a run as a table, as JSON and as a drawing.

mod json;
mod svg;
mod table;

use super::machine::Machine;
use super::measure::{Figures, median};
use super::{Args, Peer};

pub use json::json;
pub use svg::svg;
pub use table::table;

/// One peer at one size in one round.
#[derive(Debug, Clone)]
pub struct Cell {
    /// The switch.
    pub peer: Peer,
    /// From 1.
    pub round: u32,
    /// Frame size without FCS.
    pub bytes: u32,
    /// The figures, or why there are none.
    pub figures: Result<Figures, String>,
}

/// Everything there is to tell.
#[derive(Debug)]
pub struct Report<'a> {
    /// The command line.
    pub args: &'a Args,
    /// Where it ran.
    pub machine: Machine,
    /// In the order they were measured.
    pub cells: Vec<Cell>,
    /// Peers left out, and why.
    pub skipped: Vec<(Peer, String)>,
}

/// One switch against another at one size in one round.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RoundRatio {
    /// From 1.
    pub round: u32,
    /// Of frames per CPU second, or of frames.
    pub ratio: f64,
    /// Others used the CPUs beside either of them. A polling switch goes on burning its core while
    /// its guest waits for one, and a sleeping switch does not, so such a ratio flatters the
    /// latter.
    pub noisy: bool,
}

/// One switch against another at one size.
#[derive(Debug, Clone, PartialEq)]
pub struct Ratio {
    /// Frame size without FCS.
    pub bytes: u32,
    /// Those in which both have figures.
    pub rounds: Vec<RoundRatio>,
    /// Of the rounds.
    pub median: f64,
}

impl Report<'_> {
    /// Cells of one row, round by round.
    pub fn row(&self, peer: Peer, bytes: u32) -> impl Iterator<Item = &Cell> {
        self.cells.iter().filter(move |cell| cell.peer == peer && cell.bytes == bytes)
    }

    /// Median over the rounds that have figures, or `None` when no round has.
    pub fn median(&self, peer: Peer, bytes: u32, of: fn(&Figures) -> f64) -> Option<f64> {
        let figures = self.row(peer, bytes).filter_map(|cell| cell.figures.as_ref().ok());
        median(&mut figures.map(of).collect::<Vec<_>>())
    }

    /// vmlan divided by OVS-DPDK for every size that has both.
    pub fn ratios(&self) -> Vec<Ratio> {
        self.args.sizes.iter().filter_map(|&bytes| self.ratio(Peer::Vmlan, bytes)).collect()
    }

    /// vmlan with policies divided by vmlan without, frames delivered, for every size that has
    /// both.
    pub fn policies(&self) -> Vec<Ratio> {
        let pair = [Peer::Policies, Peer::Vmlan];
        let one = |&bytes| self.compare(pair, bytes, |f| f.frames_per_s);
        self.args.sizes.iter().filter_map(one).collect()
    }

    /// `peer` divided by OVS-DPDK, frames per CPU second, round by round.
    pub fn ratio(&self, peer: Peer, bytes: u32) -> Option<Ratio> {
        self.compare([peer, Peer::OvsDpdk], bytes, |f| f.frames_per_cpu_s)
    }

    fn compare(
        &self,
        [peer, base]: [Peer; 2],
        bytes: u32,
        value: fn(&Figures) -> f64,
    ) -> Option<Ratio> {
        let of = |peer, round| {
            let cell = self.row(peer, bytes).find(|cell| cell.round == round)?;
            cell.figures.as_ref().ok()
        };
        let rounds = (1..=self.args.rounds).filter_map(|round| {
            let (ours, theirs) = (of(peer, round)?, of(base, round)?);
            let ratio = value(ours) / value(theirs);
            Some(RoundRatio { round, ratio, noisy: ours.noisy() || theirs.noisy() })
        });
        let rounds: Vec<_> = rounds.collect();
        let median = median(&mut rounds.iter().map(|round| round.ratio).collect::<Vec<_>>())?;
        Some(Ratio { bytes, rounds, median })
    }
}

#[cfg(test)]
mod tests;
