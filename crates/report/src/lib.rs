//! What a run directory says.
