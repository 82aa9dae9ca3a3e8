//! Groups the rows of a pass into attention tiles that share the reads of a prefix.

use super::context::int;

/// Keys per unit, as in attention.cuh.
pub(super) const UNIT: usize = 16;
/// Rows of a tile, which share a CTA and its reads of their common prefix: more if there are enough
/// rows to fill the GPU.
const TILE_ROWS_LARGE: usize = 64;
const TILE_ROWS_SMALL: usize = 16;
/// Number of rows from which on tiles are large.
const LARGE_BATCH_ROWS: usize = 2048;

/// Maximum rows of a tile.
pub(super) fn tile_rows(rows: usize) -> usize {
    if rows >= LARGE_BATCH_ROWS { TILE_ROWS_LARGE } else { TILE_ROWS_SMALL }
}

/// Flag, as in attention.cuh: instead of its first slot, a tile has the index of the first of the
/// spans that list the units of its prefix.
pub(super) const SCATTERED: u32 = 1 << 31;

/// Rows grouped into tiles, in the layout of the kernels (attention.cu).
#[derive(Default)]
pub(super) struct TilePlan {
    /// First row, number of rows, first slot of the prefix, its maximum length.
    pub(super) tiles: Vec<[u32; 4]>,
    /// Length of the prefix, begin and end of unshared spans, number of unshared slots.
    pub(super) rows: Vec<[u32; 4]>,
    /// Unshared spans: first slot, length; then units of scattered prefixes.
    pub(super) spans: Vec<[u32; 2]>,
    /// One past the last slot of any span.
    pub(super) end_slot: usize,
    /// Whether a prefix is in several spans.
    pub(super) scattered: bool,
}

impl TilePlan {
    pub(super) fn new<I: IntoIterator<Item = (u32, u32)>>(
        rows: usize,
        spans_of: impl Fn(usize) -> I,
        prefix_of: impl Fn(usize) -> u32,
    ) -> Self {
        let mut plan = Self {
            rows: Vec::with_capacity(rows),
            spans: Vec::with_capacity(2 * rows),
            ..Self::default()
        };
        let tile_rows = tile_rows(rows);
        let mut longest_rows: Vec<(usize, bool)> = Vec::new(); // per tile; in several spans?
        for r in 0..rows {
            let prefix = prefix_of(r);
            let begin = plan.spans.len();
            let mut first = None;
            let mut left = prefix;
            let mut own = 0;
            for (start, len) in spans_of(r) {
                let shared = len.min(left);
                left -= shared;
                if shared < len {
                    plan.spans.push([start + shared, len - shared]);
                    own += len - shared;
                }
                first = first.or(Some((start, len)));
                plan.end_slot = plan.end_slot.max(start as usize + len as usize);
            }
            let (start, len) = first.unwrap_or_else(|| panic!("attention: row {r} has no slots"));
            assert_eq!(left, 0, "attention: row {r} has a prefix longer than its slots");
            plan.rows.push([prefix, int(begin), int(plan.spans.len()), own]);
            match (plan.tiles.last_mut(), longest_rows.last_mut()) {
                (Some([_, count, shared, longest]), Some(longest_row))
                    if *shared == start && (*count as usize) < tile_rows =>
                {
                    *count += 1;
                    if prefix > *longest {
                        (*longest, *longest_row) = (prefix, (r, prefix > len));
                    }
                }
                _ => {
                    plan.tiles.push([int(r), 1, start, prefix]);
                    longest_rows.push((r, prefix > len));
                }
            }
        }
        for (tile, (row, scattered)) in longest_rows.into_iter().enumerate() {
            if scattered {
                plan.tiles[tile][2] = SCATTERED | int(plan.spans.len());
                plan.push_units(spans_of(row), prefix_of(row));
            }
        }
        plan
    }

    /// Appends the first slot of each unit of a prefix.
    fn push_units(&mut self, spans: impl IntoIterator<Item = (u32, u32)>, mut left: u32) {
        self.scattered = true;
        for (start, len) in spans {
            let shared = len.min(left);
            left -= shared;
            assert!(
                left == 0 || (shared as usize).is_multiple_of(UNIT),
                "attention: a prefix of {shared} slots is not a multiple of the unit size"
            );
            self.spans.extend((0..shared).step_by(UNIT).map(|offset| [start + offset, 0]));
        }
    }

    pub(super) fn bytes(&self) -> usize {
        (self.tiles.len() + self.rows.len()) * 16 + self.spans.len() * 8
    }
}

#[cfg(test)]
mod tests {
    use super::{SCATTERED, TilePlan};

    fn plan(rows: &[(u32, &[(u32, u32)])]) -> TilePlan {
        TilePlan::new(rows.len(), |r| rows[r].1.iter().copied(), |r| rows[r].0)
    }

    #[test]
    fn neighbours_with_a_common_prefix_share_a_tile() {
        let plan = plan(&[
            (5, &[(0, 5), (32, 2)]),
            (5, &[(0, 5), (48, 1), (64, 3)]),
            (4, &[(0, 4)]),
            (3, &[(16, 3), (80, 1)]),
            (3, &[(16, 3)]),
            (5, &[(0, 5)]),
        ]);
        assert_eq!(plan.tiles, [[0, 3, 0, 5], [3, 2, 16, 3], [5, 1, 0, 5]]);
        assert_eq!(
            plan.rows,
            [[5, 0, 1, 2], [5, 1, 3, 4], [4, 3, 3, 0], [3, 3, 4, 1], [3, 4, 4, 0], [5, 4, 4, 0]]
        );
        assert_eq!(plan.spans, [[32, 2], [48, 1], [64, 3], [80, 1]]);
        assert_eq!((plan.end_slot, plan.scattered), (81, false));
        let many = TilePlan::new(40, |r| [((r / 20) as u32, 1)], |_| 1);
        assert_eq!(many.tiles.iter().map(|tile| tile[1]).collect::<Vec<_>>(), [16, 4, 16, 4]);
    }

    /// The slots' locations change addresses, but not the lengths that determine the computation.
    #[test]
    fn a_prefix_may_be_scattered_and_what_follows_it_adjacent() {
        let lengths = |plan: &TilePlan| plan.rows.iter().map(|r| [r[0], r[3]]).collect::<Vec<_>>();
        let together = plan(&[(20, &[(0, 20), (64, 3)]), (20, &[(0, 20), (80, 18)])]);
        let merged = plan(&[(20, &[(0, 23)]), (20, &[(0, 20), (80, 18)])]);
        let apart = plan(&[(20, &[(48, 16), (16, 4), (64, 3)]), (20, &[(48, 16), (16, 22)])]);
        assert_eq!(lengths(&together), [[20, 3], [20, 18]]);
        assert_eq!(lengths(&together), lengths(&merged));
        assert_eq!(lengths(&together), lengths(&apart));
        assert_eq!(merged.spans[0], [20, 3]);
        assert_eq!(apart.tiles, [[0, 2, SCATTERED | 2, 20]]);
        assert_eq!(apart.spans, [[64, 3], [20, 18], [48, 0], [16, 0]]);
        assert_eq!(apart.bytes(), (1 + 2) * 16 + 4 * 8);
    }
}
