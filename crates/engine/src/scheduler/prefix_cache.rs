//! Cached prompt prefixes of requests that have left, for requests that begin with the same tokens.
//!
//! A block is a chunk of slots with the keys and values of the same number of tokens, following
//! those of its parent block. A lease pins the blocks that a prompt begins with; unused blocks are
//! evicted in least-recently-used order, children before parents, when their slots are needed. The
//! keys and values of a position depend only on the tokens before it, so a prompt that begins with
//! cached blocks gets the same bits on a CPU.

use std::collections::{BTreeMap, HashMap};

use model::{Cache, Sequence};

/// Identifies a block; 0 is the root, the empty prefix.
type BlockId = u64;

struct PrefixBlock {
    parent: BlockId,
    tokens: Vec<u32>,
    /// The prompt up to the end of the block.
    kv: Sequence,
    users: usize,
    children: usize,
    /// Time of its last use, which determines the eviction order.
    last_use: u64,
}

/// A lease on the cached blocks that a prompt begins with. They stay pinned until it is returned.
#[derive(Default)]
pub(crate) struct PrefixLease {
    blocks: Vec<BlockId>,
    /// Their positions, to continue from; `None` if there are none.
    pub(crate) kv: Option<Sequence>,
}

impl PrefixLease {
    /// Number of positions that need not be computed.
    pub(crate) fn len(&self) -> usize {
        self.kv.as_ref().map_or(0, Sequence::len)
    }
}

/// Blocks of prompts, keyed by parent block and tokens.
#[derive(Default)]
pub(crate) struct PrefixCache {
    blocks: HashMap<BlockId, PrefixBlock>,
    children: HashMap<(BlockId, Vec<u32>), BlockId>,
    /// Blocks without users and children, by their last use.
    idle: BTreeMap<u64, BlockId>,
    pinned: usize,
    last_id: BlockId,
    clock: u64,
    /// Total shared prompt tokens of all sources; the next field counts those that were cached.
    pub(crate) prompt_tokens: u64,
    pub(crate) cached_tokens: u64,
}

/// Number of tokens per block.
fn block_len() -> usize {
    Cache::slots_for(1)
}

impl PrefixCache {
    /// Number of slots of all blocks.
    pub(crate) fn slots(&self) -> usize {
        self.blocks.len() * block_len()
    }

    /// Number of slots of blocks that cannot be evicted.
    pub(crate) fn pinned_slots(&self) -> usize {
        self.pinned * block_len()
    }

    /// Adds the shared tokens of a prompt to the statistics.
    pub(crate) fn count_prompt(&mut self, tokens: usize) {
        self.prompt_tokens += tokens as u64;
    }

    /// Pins the longest cached prefix of some tokens.
    pub(crate) fn acquire(&mut self, tokens: &[u32]) -> PrefixLease {
        let mut lease = PrefixLease::default();
        let mut parent = 0;
        for tokens in tokens.chunks_exact(block_len()) {
            let Some(&id) = self.children.get(&(parent, tokens.to_vec())) else { break };
            self.clock += 1;
            if let Some(block) = self.blocks.get_mut(&id) {
                self.idle.remove(&block.last_use);
                block.last_use = self.clock;
                block.users += 1;
                self.pinned += usize::from(block.users == 1);
                lease.kv = Some(block.kv.continued());
            }
            lease.blocks.push(id);
            parent = id;
        }
        self.cached_tokens += lease.len() as u64;
        lease
    }

    /// Returns a lease. The whole blocks of the prompt stay in the cache, with their slots; the
    /// other slots of its sequence are freed.
    pub(crate) fn give_back(
        &mut self,
        cache: Option<&mut Cache>,
        (tokens, kv): (&[u32], Sequence),
        lease: PrefixLease,
    ) {
        let mut stored = lease.len();
        let mut parent = lease.blocks.last().copied().unwrap_or_default();
        let computed = &tokens[..kv.len().min(tokens.len())];
        for tokens in computed.chunks_exact(block_len()).skip(lease.blocks.len()) {
            let key = (parent, tokens.to_vec());
            if self.children.contains_key(&key) {
                break; // another request has computed the same block concurrently
            }
            self.last_id += 1;
            self.clock += 1;
            stored += block_len();
            let block = PrefixBlock {
                parent,
                tokens: tokens.to_vec(),
                kv: kv.fork_at(stored),
                users: 0,
                children: 0,
                last_use: self.clock,
            };
            if let Some(parent) = self.blocks.get_mut(&parent) {
                parent.children += 1;
                self.idle.remove(&parent.last_use);
            }
            parent = self.last_id;
            self.idle.insert(block.last_use, parent);
            self.children.insert(key, parent);
            self.blocks.insert(parent, block);
        }
        if let Some(cache) = cache {
            cache.release(kv, stored);
        }
        for id in lease.blocks {
            let Some(block) = self.blocks.get_mut(&id) else { continue };
            block.users -= 1;
            self.pinned -= usize::from(block.users == 0);
            self.note_idle(id);
        }
    }

    fn note_idle(&mut self, id: BlockId) {
        let Some(block) = self.blocks.get(&id) else { return };
        if block.users == 0 && block.children == 0 {
            self.idle.insert(block.last_use, id);
        }
    }

    /// Evicts the least recently used block; false if all are in use.
    pub(crate) fn evict(&mut self, cache: &mut Cache) -> bool {
        let Some((_, id)) = self.idle.pop_first() else { return false };
        let Some(block) = self.blocks.remove(&id) else { return false };
        let start = block.kv.len() - block_len();
        cache.release(block.kv, start);
        self.children.remove(&(block.parent, block.tokens));
        if let Some(parent) = self.blocks.get_mut(&block.parent) {
            parent.children -= 1;
        }
        self.note_idle(block.parent);
        true
    }

    /// Removes all blocks but keeps the statistics.
    pub(crate) fn clear(&mut self) {
        let Self { prompt_tokens, cached_tokens, .. } = *self;
        *self = Self { prompt_tokens, cached_tokens, ..Self::default() };
    }
}
