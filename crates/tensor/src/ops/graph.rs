//! CUDA graphs of forward passes, captured once and replayed with other inputs.

use std::sync::{Mutex, PoisonError};

use super::{AttentionSpans, KvStore, OutputDtype};
use crate::cuda::args::MetadataExtent;
use crate::cuda::graph::{CudaGraph, GraphInputs};
use crate::device::Backend;
use crate::params::SiteSet;
use crate::{Device, DeviceError, Tensor};

/// Passes with more rows keep a GPU busy for longer than the host takes to launch them.
const MAX_ROWS: usize = 512;
/// Graphs kept; the least recently used one is evicted.
const MAX_GRAPHS: usize = 48;

/// Everything except the contents of its inputs that a pass's launches depend on: passes with equal
/// keys can replay the same graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphKey {
    stream: usize, // captured for and replayed on: its memory is used in that stream's order
    kv: (u64, [usize; 4]),
    attention: [Option<MetadataExtent>; 2], // of all rows, then of the output rows
    dropout: SiteSet,
    dtype: OutputDtype, // of the hidden states
}

impl GraphKey {
    /// The key of a pass over `kv` whose rows attend to `spans`, and whose output rows, if they are
    /// not all, to `output_spans`; with dropout at some sites, and hidden states of the given
    /// dtype.
    ///
    /// # Panics
    /// If the store is not on a GPU.
    pub fn new(
        kv: &KvStore,
        spans: &AttentionSpans,
        output_spans: Option<&AttentionSpans>,
        dropout: SiteSet,
        dtype: OutputDtype,
    ) -> Self {
        let kv = kv.on_gpu().unwrap_or_else(|| panic!("graph: the kv store is not on a gpu"));
        let extent = |spans: &AttentionSpans| {
            let of = |r: usize| spans.row_spans(r).iter().map(|s| (s.start, s.len));
            kv.metadata_extent(spans.rows(), of, |r| spans.prefixes[r])
        };
        let attention = [Some(extent(spans)), output_spans.map(extent)];
        Self { stream: 0, kv: kv.address_and_shape(), attention, dropout, dtype }
    }

    /// Whether passes of `rows` rows over `kv` benefit from graphs.
    pub fn is_worthwhile(kv: &KvStore, rows: usize) -> bool {
        kv.on_gpu().is_some() && (1..=MAX_ROWS).contains(&rows)
    }
}

/// The CUDA graphs of a model's passes. They contain the addresses of its weights, so they must be
/// dropped first.
#[derive(Debug, Default)]
pub struct GraphCache(Mutex<GraphEntries>);

#[derive(Debug, Default)]
struct GraphEntries {
    /// The first error of a capture.
    failure: Option<String>,
    disabled: bool,
    entries: Vec<(GraphKey, u64, GraphState)>, // with the clock of last use
    clock: u64,
    replays: usize,
}

#[derive(Debug)]
enum GraphState {
    /// Launched once. Most keys do not recur; the pass is captured the second time.
    Seen,
    /// The capture failed: the pass is always launched directly.
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
    /// Disables graphs: every pass is launched directly.
    pub fn disabled() -> Self {
        Self(Mutex::new(GraphEntries { disabled: true, ..GraphEntries::default() }))
    }

    /// Drops all graphs, because the weights whose addresses they contain are replaced.
    pub fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).entries.clear();
    }

    /// The number of passes that were replayed.
    pub fn replays(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).replays
    }

    /// The reason that a pass could not be captured, if so: it is launched kernel by kernel.
    pub fn failure(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).failure.clone()
    }

    /// `body(prepare(x))`, replaying the graph for `key` if there is one. `prepare` copies the
    /// pass's inputs to the device; `body` computes the pass from them, without copies to or from
    /// the host.
    pub fn run<P>(
        &self,
        device: &Device,
        key: GraphKey,
        x: Tensor,
        mut prepare: impl FnMut(Tensor) -> Result<P, DeviceError>,
        mut body: impl FnMut(P) -> Result<Tensor, DeviceError>,
    ) -> Result<Tensor, DeviceError> {
        let Backend::Cuda(cuda) = device.backend() else { return body(prepare(x)?) };
        let key = GraphKey { stream: cuda.stream_id(), ..key };
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let copied = |x: &Tensor| Ok::<Tensor, DeviceError>(x.gpu().copy()?.into());
        if entries.disabled {
            drop(entries);
            return body(prepare(x)?);
        }
        match entries.lookup(key) {
            Some(GraphState::Captured(pass)) => {
                let (in_place, inputs) = pass.inputs.refill(|| prepare(copied(&x)?))?;
                if !in_place {
                    return body(inputs);
                }
                pass.graph.launch()?;
                let out = copied(&pass.out);
                entries.replays += 1;
                return out;
            }
            Some(state @ GraphState::Seen) => {
                let captured = GraphInputs::allocate(cuda, || prepare(copied(&x)?)).and_then(
                    |(inputs, prepared)| {
                        let (graph, out) = CudaGraph::new(cuda, || body(prepared))?;
                        Ok(CapturedPass { graph, inputs, out })
                    },
                );
                match captured {
                    Ok(mut pass) => {
                        pass.graph.launch()?;
                        let out = copied(&pass.out)?;
                        tracing::debug!("captured a forward step as a CUDA graph");
                        *state = GraphState::Captured(pass);
                        return Ok(out);
                    }
                    // Launched below, which reports errors other than those of the capture.
                    Err(error) => {
                        *state = GraphState::Failed;
                        tracing::warn!(%error, "a CUDA graph failed; launching kernels individually");
                        entries.failure.get_or_insert_with(|| error.to_string());
                    }
                }
            }
            Some(GraphState::Failed) => {}
            None => entries.insert(key),
        }
        drop(entries);
        body(prepare(x)?)
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
        let key = |address| GraphKey {
            stream: 0,
            kv: (address, [0; 4]),
            attention: [None; 2],
            dropout: SiteSet::EMPTY,
            dtype: OutputDtype::F32,
        };
        let mut entries = GraphEntries::default();
        for address in 0..MAX_GRAPHS as u64 {
            assert!(entries.lookup(key(address)).is_none());
            entries.insert(key(address));
        }
        assert!(entries.lookup(key(0)).is_some());
        assert!(entries.lookup(key(1000)).is_none());
        entries.insert(key(1000));
        assert!(entries.lookup(key(0)).is_some() && entries.lookup(key(1000)).is_some());
        assert!(entries.lookup(key(1)).is_none());
        assert_eq!(entries.entries.len(), MAX_GRAPHS);
    }
}
