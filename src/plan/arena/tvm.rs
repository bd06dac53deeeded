//! The memory that TVM's graph planner uses.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::{ArenaRequest, align_up};

/// What TVM's graph planner would use for the same requests: whole blocks, handed on when free,
/// searched within a factor of 16 (smallest that fits, else the largest smaller one, grown).
///
/// Requests are visited by their first step; a block is free from the step after its last use.
pub fn tvm_rule(requests: &[ArenaRequest]) -> TvmBlocks {
    const RANGE: u64 = 16;
    let mut order: Vec<usize> = (0..requests.len()).filter(|&i| requests[i].bytes > 0).collect();
    order.sort_by_key(|&i| (requests[i].first, i));
    let mut blocks: Vec<u64> = Vec::new();
    // Free blocks by size; equal ones in the order of their release.
    let mut free: BTreeMap<(u64, usize), usize> = BTreeMap::new();
    let mut released = 0;
    // Blocks in use, by the last step and the position in `order` of what lies in them.
    let mut busy: BinaryHeap<Reverse<(u32, usize, usize)>> = BinaryHeap::new();
    let mut block_of = vec![None; requests.len()];
    for (at, &i) in order.iter().enumerate() {
        let r = &requests[i];
        let mut ended: Vec<(usize, usize)> = Vec::new();
        while let Some(Reverse((_, since, block))) =
            busy.peek().copied().filter(|Reverse((last, _, _))| *last < r.first)
        {
            busy.pop();
            ended.push((since, block));
        }
        ended.sort_unstable();
        for (_, block) in ended {
            free.insert((blocks[block], released), block);
            released += 1;
        }
        let most = r.bytes.saturating_mul(RANGE);
        let fit = free.range((r.bytes, 0)..).next().filter(|((bytes, _), _)| *bytes <= most);
        let grow =
            || free.range(..(r.bytes, 0)).next_back().filter(|((bytes, _), _)| *bytes >= r.bytes / RANGE);
        let block = match fit.or_else(grow).map(|(key, block)| (*key, *block)) {
            Some((key, block)) => {
                free.remove(&key);
                blocks[block] = blocks[block].max(r.bytes);
                block
            }
            None => {
                blocks.push(r.bytes);
                blocks.len() - 1
            }
        };
        block_of[i] = Some(block);
        busy.push(Reverse((r.last, at, block)));
    }
    TvmBlocks { blocks, block_of }
}

/// The blocks that [`tvm_rule`] makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TvmBlocks {
    /// Bytes of each block.
    pub blocks: Vec<u64>,
    /// The block of each request; `None` for empty ones.
    pub block_of: Vec<Option<usize>>,
}

impl TvmBlocks {
    /// Bytes of all blocks.
    pub fn total(&self) -> u64 {
        self.blocks.iter().copied().fold(0, u64::saturating_add)
    }

    /// Bytes of all blocks of `requests`, each up to the next that the alignment of what lies in it allows (TVM
    /// allocates every block by itself, in whole pages).
    pub fn aligned_total(&self, requests: &[ArenaRequest]) -> u64 {
        let ends = self.blocks.iter().zip(self.alignments(requests)).map(|(bytes, a)| align_up(*bytes, a));
        ends.fold(0, u64::saturating_add)
    }

    pub(super) fn alignments(&self, requests: &[ArenaRequest]) -> Vec<u64> {
        let mut alignments = vec![1; self.blocks.len()];
        for (r, block) in requests.iter().zip(&self.block_of) {
            if let Some(block) = block {
                alignments[*block] = r.alignment.max(alignments[*block]);
            }
        }
        alignments
    }
}
