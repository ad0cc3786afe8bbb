mod frames;
mod runs;
pub(crate) mod wire;
