//! A checkpoint becomes a decoder.
