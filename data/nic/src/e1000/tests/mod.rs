//! Tests of the chip: its registers against the manual, its data path against a tiny guest.

mod csb;
mod data;
mod quiet;
mod registers;
mod replay;
