//! Passes that are repeated with other numbers, recorded once.

use std::sync::{Mutex, PoisonError};

use super::{Attend, Format, KvStore};
use crate::cuda::replay::{Inputs, Recording};
use crate::device::Kind;
use crate::{Device, DeviceError, Tensor};

/// Passes of more rows keep a GPU busy longer than it takes to ask for them.
const MOST_ROWS: usize = 512;
/// Recordings kept; the one longest unused makes room for the next.
const MOST_KEPT: usize = 48;

/// Everything in a pass's operations that is not in its inputs: passes of one key differ in the contents of inputs alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    lane: usize, // in which it is recorded and replayed: its memory is used in that one's order
    store: (u64, [usize; 4]),
    seen: [Option<(usize, usize, usize)>; 2], // rows, tiles, memory
    dropout: Option<(u32, [bool; 2])>,
    format: Format, // of what comes out
}

impl Key {
    /// For a pass over `kv` in which rows see `seen` and, after some are left out, `then`; with dropout of a share at either
    /// site, and results in a format.
    ///
    /// # Panics
    /// If [`Key::is_worth_while`] says no.
    pub fn new(
        kv: &KvStore,
        seen: &Attend,
        then: Option<&Attend>,
        (dropout, format): (Option<(f32, [bool; 2])>, Format),
    ) -> Self {
        let store = kv.place().unwrap_or_else(|| panic!("replay: the store is not on a gpu"));
        let seen = [Some(seen.extent()), then.map(Attend::extent)];
        Self { lane: 0, store, seen, dropout: dropout.map(|(p, sites)| (p.to_bits(), sites)), format }
    }

    /// Whether passes of so many rows over `kv` gain from being replayed.
    pub fn is_worth_while(kv: &KvStore, rows: usize) -> bool {
        kv.place().is_some() && (1..=MOST_ROWS).contains(&rows)
    }
}

/// Recordings of a model's passes. Its weights must outlive them and stay where they are.
#[derive(Debug, Default)]
pub struct Replays(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    off: bool,
    all: Vec<(Key, u64, State)>, // with the time of last use
    now: u64,
    replayed: usize, // passes
}

#[derive(Debug)]
enum State {
    /// Met once. Most keys are not met again; those that are, are recorded.
    Met,
    /// The device did not record it.
    Refused,
    Recorded(Replay),
}

#[derive(Debug)]
struct Replay {
    recording: Recording,
    inputs: Inputs,
    out: Tensor,
}

impl Replays {
    /// None, ever: every pass is launched.
    pub fn off() -> Self {
        Self(Mutex::new(Kept { off: true, ..Kept::default() }))
    }

    /// How many passes were replayed and not launched.
    pub fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).replayed
    }

    /// `body(part(x))`, by replay if that is possible. `part` brings the inputs of the pass to the device, `body` computes
    /// it from them and from what stays the same under one `key`, without bringing anything to or from the device.
    pub fn run<P>(
        &self,
        device: &Device,
        key: Key,
        x: Tensor,
        mut part: impl FnMut(Tensor) -> Result<P, DeviceError>,
        mut body: impl FnMut(P) -> Result<Tensor, DeviceError>,
    ) -> Result<Tensor, DeviceError> {
        let Kind::Cuda(cuda) = device.kind() else { return body(part(x)?) };
        let key = Key { lane: cuda.lane().bare_stream() as usize, ..key };
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let copied = |x: &Tensor| Ok::<Tensor, DeviceError>(x.array().copy()?.into());
        if kept.off {
            drop(kept);
            return body(part(x)?);
        }
        match kept.state(key) {
            Some(State::Recorded(replay)) => {
                let (in_place, part) = replay.inputs.again(|| part(copied(&x)?))?;
                if !in_place {
                    return body(part);
                }
                replay.recording.replay()?;
                let out = copied(&replay.out);
                kept.replayed += 1;
                return out;
            }
            Some(state @ State::Met) => {
                let recorded = Inputs::first(cuda, || part(copied(&x)?)).and_then(|(inputs, part)| {
                    let (recording, out) = Recording::new(cuda, || body(part))?;
                    Ok(Replay { recording, inputs, out })
                });
                match recorded {
                    Ok(mut replay) => {
                        replay.recording.replay()?;
                        let out = copied(&replay.out)?;
                        *state = State::Recorded(replay);
                        return Ok(out);
                    }
                    Err(_) => *state = State::Refused, // if that was not the recording's fault, it shows again below
                }
            }
            Some(State::Refused) => {}
            None => kept.meet(key),
        }
        drop(kept);
        body(part(x)?)
    }
}

impl Kept {
    fn state(&mut self, key: Key) -> Option<&mut State> {
        self.now += 1;
        let (_, used, state) = self.all.iter_mut().find(|(k, ..)| *k == key)?;
        *used = self.now;
        Some(state)
    }

    fn meet(&mut self, key: Key) {
        if self.all.len() >= MOST_KEPT
            && let Some(oldest) = (0..self.all.len()).min_by_key(|&i| self.all[i].1)
        {
            self.all.swap_remove(oldest);
        }
        self.all.push((key, self.now, State::Met));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_unused_makes_room() {
        let key = |place| Key { lane: 0, store: (place, [0; 4]), seen: [None; 2], dropout: None, format: Format::Single };
        let mut kept = Kept::default();
        for place in 0..MOST_KEPT as u64 {
            assert!(kept.state(key(place)).is_none());
            kept.meet(key(place));
        }
        assert!(kept.state(key(0)).is_some());
        assert!(kept.state(key(1000)).is_none());
        kept.meet(key(1000));
        assert!(kept.state(key(0)).is_some() && kept.state(key(1000)).is_some());
        assert!(kept.state(key(1)).is_none());
        assert_eq!(kept.all.len(), MOST_KEPT);
    }
}
