//! The shared status block: scripted guests of all generations.

mod points;
