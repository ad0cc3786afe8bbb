mod frames;
mod runs;
mod wire;
