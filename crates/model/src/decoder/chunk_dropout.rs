//! The dropout of a chunk's rows, extracted from that of a pass.

use std::ops::Range;

use tensor::ops::{DropoutMask, KeepMask, PerturbedRows, SiteSet};
use tensor::rng::Site;
use tensor::{Device, DeviceError};

use super::{Dropout, sites_of};

/// The dropout of some rows.
#[derive(Debug)]
pub(super) enum ChunkDropout {
    None,
    /// `sites` are those of any row of the chunk, so that the same kernels run for its output rows.
    Sampled {
        sites: SiteSet,
        rows: PerturbedRows,
    },
    Recorded {
        p: f32,
        sites: SiteSet,
        masks: Vec<Vec<u8>>,
        keep: Vec<KeepMask>,
    },
}

impl ChunkDropout {
    pub(super) fn cut(
        device: &Device,
        dropout: Option<Dropout<'_>>,
        width: usize,
        rows: Range<usize>,
    ) -> Result<Self, DeviceError> {
        match dropout {
            None => Ok(Self::None),
            Some(Dropout::Sampled(all)) => {
                let rows = all[rows].to_vec();
                Ok(Self::Sampled {
                    sites: sites_of(&rows),
                    rows: PerturbedRows::new(device, rows)?,
                })
            }
            Some(Dropout::Recorded { p, sites, masks }) => {
                let masks: Vec<_> = masks
                    .iter()
                    .map(|m| m[rows.start * width..rows.end * width].to_vec())
                    .collect();
                let keep = keep(device, &masks, width)?;
                Ok(Self::Recorded { p, sites, masks, keep })
            }
        }
    }

    pub(super) fn select(
        &self,
        device: &Device,
        wanted: &[usize],
        width: usize,
    ) -> Result<Self, DeviceError> {
        Ok(match self {
            Self::None => Self::None,
            Self::Sampled { sites, rows } => {
                let rows = wanted.iter().map(|&r| rows.rows()[r]).collect();
                Self::Sampled { sites: *sites, rows: PerturbedRows::new(device, rows)? }
            }
            Self::Recorded { p, sites, masks, .. } => {
                let picked = |mask: &Vec<u8>| {
                    wanted
                        .iter()
                        .flat_map(|&r| &mask[r * width..(r + 1) * width])
                        .copied()
                        .collect()
                };
                let masks: Vec<Vec<u8>> = masks.iter().map(picked).collect();
                let keep = keep(device, &masks, width)?;
                Self::Recorded { p: *p, sites: *sites, masks, keep }
            }
        })
    }

    pub(super) fn mask(&self, layer: usize, site: Site) -> Option<DropoutMask<'_>> {
        match self {
            Self::Sampled { sites, rows } if sites.contains(site) => {
                Some(DropoutMask::Sampled { layer, site, rows })
            }
            Self::Recorded { p, sites, keep, .. } if sites.contains(site) => {
                let which = usize::from(site == Site::MlpOut);
                Some(DropoutMask::Recorded { p: *p, keep: &keep[2 * layer + which] })
            }
            _ => None,
        }
    }
}

fn keep(device: &Device, masks: &[Vec<u8>], width: usize) -> Result<Vec<KeepMask>, DeviceError> {
    masks.iter().map(|m| KeepMask::new(device, m.len() / width, width, m.clone())).collect()
}
