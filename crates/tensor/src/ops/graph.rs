//! Passes that are repeated with other numbers, recorded once.

use std::sync::{Mutex, PoisonError};

use super::{AttentionSpans, KvStore, OutputDtype};
use crate::cuda::args::MetadataExtent;
use crate::cuda::graph::{CudaGraph, GraphInputs};
use crate::device::Backend;
use crate::params::SiteSet;
use crate::{Device, DeviceError, Tensor};

/// Passes of more rows keep a GPU busy longer than it takes to ask for them.
const MAX_ROWS: usize = 512;
/// Recordings kept; the one longest unused makes room for the next.
const MAX_GRAPHS: usize = 48;

/// Everything in a pass's operations that is not in its inputs: passes of one key differ in the
/// contents of inputs alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphKey {
    stream: usize, // in which it is recorded and replayed: its memory is used in that one's order
    kv: (u64, [usize; 4]),
    attention: [Option<MetadataExtent>; 2], // of all rows, then of the output rows
    dropout: SiteSet,
    dtype: OutputDtype, // of what comes out
}

impl GraphKey {
    /// For a pass over `kv` in which rows see `seen` and, after some are left out, `then`; with
    /// dropout at some sites, and results of a dtype.
    ///
    /// # Panics
    /// If the store is not on a GPU.
    pub fn new(
        kv: &KvStore,
        seen: &AttentionSpans,
        then: Option<&AttentionSpans>,
        dropout: SiteSet,
        dtype: OutputDtype,
    ) -> Self {
        let kv = kv.on_gpu().unwrap_or_else(|| panic!("graph: the kv store is not on a gpu"));
        let extent = |spans: &AttentionSpans| {
            let starts = (0..spans.rows()).filter_map(|r| spans.row_spans(r).first());
            kv.metadata_extent(spans.rows(), spans.spans.len(), starts.map(|span| span.start))
        };
        let attention = [Some(extent(seen)), then.map(extent)];
        Self { stream: 0, kv: kv.address_and_shape(), attention, dropout, dtype }
    }

    /// Whether passes of so many rows over `kv` gain from being replayed.
    pub fn is_worthwhile(kv: &KvStore, rows: usize) -> bool {
        kv.on_gpu().is_some() && (1..=MAX_ROWS).contains(&rows)
    }
}

/// Recordings of a model's passes. Its weights must outlive them and stay where they are.
#[derive(Debug, Default)]
pub struct GraphCache(Mutex<GraphEntries>);

#[derive(Debug, Default)]
struct GraphEntries {
    disabled: bool,
    entries: Vec<(GraphKey, u64, GraphState)>, // with the time of last use
    clock: u64,
    replays: usize, // passes
}

#[derive(Debug)]
enum GraphState {
    /// Met once. Most keys are not met again; those that are, are recorded.
    Seen,
    /// The device did not record it.
    Failed,
    Captured(CapturedPass),
}

#[derive(Debug)]
struct CapturedPass {
    graph: CudaGraph,
    inputs: GraphInputs,
    out: Tensor,
}

impl GraphCache {
    /// None, ever: every pass is launched.
    pub fn disabled() -> Self {
        Self(Mutex::new(GraphEntries { disabled: true, ..GraphEntries::default() }))
    }

    /// How many passes were replayed and not launched.
    pub fn replays(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).replays
    }

    /// `body(part(x))`, by replay if that is possible. `part` brings the inputs of the pass to the
    /// device, `body` computes it from them and from what stays the same under one `key`,
    /// without bringing anything to or from the device.
    pub fn run<P>(
        &self,
        device: &Device,
        key: GraphKey,
        x: Tensor,
        mut part: impl FnMut(Tensor) -> Result<P, DeviceError>,
        mut body: impl FnMut(P) -> Result<Tensor, DeviceError>,
    ) -> Result<Tensor, DeviceError> {
        let Backend::Cuda(cuda) = device.backend() else { return body(part(x)?) };
        let key = GraphKey { stream: cuda.stream_id(), ..key };
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let copied = |x: &Tensor| Ok::<Tensor, DeviceError>(x.gpu().copy()?.into());
        if kept.disabled {
            drop(kept);
            return body(part(x)?);
        }
        match kept.lookup(key) {
            Some(GraphState::Captured(replay)) => {
                let (in_place, part) = replay.inputs.refill(|| part(copied(&x)?))?;
                if !in_place {
                    return body(part);
                }
                replay.graph.launch()?;
                let out = copied(&replay.out);
                kept.replays += 1;
                return out;
            }
            Some(state @ GraphState::Seen) => {
                let recorded =
                    GraphInputs::allocate(cuda, || part(copied(&x)?)).and_then(|(inputs, part)| {
                        let (recording, out) = CudaGraph::new(cuda, || body(part))?;
                        Ok(CapturedPass { graph: recording, inputs, out })
                    });
                match recorded {
                    Ok(mut replay) => {
                        replay.graph.launch()?;
                        let out = copied(&replay.out)?;
                        *state = GraphState::Captured(replay);
                        return Ok(out);
                    }
                    Err(_) => *state = GraphState::Failed, /* if that was not the recording's
                                                            * fault, it shows again below */
                }
            }
            Some(GraphState::Failed) => {}
            None => kept.insert(key),
        }
        drop(kept);
        body(part(x)?)
    }
}

impl GraphEntries {
    fn lookup(&mut self, key: GraphKey) -> Option<&mut GraphState> {
        self.clock += 1;
        let (_, used, state) = self.entries.iter_mut().find(|(k, ..)| *k == key)?;
        *used = self.clock;
        Some(state)
    }

    fn insert(&mut self, key: GraphKey) {
        if self.entries.len() >= MAX_GRAPHS
            && let Some(oldest) = (0..self.entries.len()).min_by_key(|&i| self.entries[i].1)
        {
            self.entries.swap_remove(oldest);
        }
        self.entries.push((key, self.clock, GraphState::Seen));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_graph_is_evicted() {
        let key = |place| GraphKey {
            stream: 0,
            kv: (place, [0; 4]),
            attention: [None; 2],
            dropout: SiteSet::EMPTY,
            dtype: OutputDtype::F32,
        };
        let mut kept = GraphEntries::default();
        for place in 0..MAX_GRAPHS as u64 {
            assert!(kept.lookup(key(place)).is_none());
            kept.insert(key(place));
        }
        assert!(kept.lookup(key(0)).is_some());
        assert!(kept.lookup(key(1000)).is_none());
        kept.insert(key(1000));
        assert!(kept.lookup(key(0)).is_some() && kept.lookup(key(1000)).is_some());
        assert!(kept.lookup(key(1)).is_none());
        assert_eq!(kept.entries.len(), MAX_GRAPHS);
    }
}
