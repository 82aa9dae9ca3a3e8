//! Random checkpoints.
