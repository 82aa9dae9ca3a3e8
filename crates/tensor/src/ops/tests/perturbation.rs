//! Tests of dropout and noise.

use super::*;

#[test]
fn residual_dropout_follows_the_rng_keys() {
    let rows = 5;
    let inputs = 8;
    let outputs = 52;
    let p = 0.3;
    let x = matrix(rows, inputs, 14);
    let w = numbers(outputs * inputs, 15);
    let bias = numbers(outputs, 16);
    let start = matrix(rows, outputs, 17);
    let keys: Vec<Option<RngKey>> = (0..rows as u32)
        .map(|r| (r != 2).then_some(RngKey { seed: 1, question: 2, trajectory: r, position: 9 }))
        .collect();
    let keeps = |r: usize, j: usize| keys[r].is_none_or(|k| k.keeps(4, Site::MlpOut, j, p));
    let keep: Vec<u8> =
        (0..rows * outputs).map(|i| keeps(i / outputs, i % outputs).into()).collect();
    for device in devices() {
        let map =
            Linear::from_output_major(&device, inputs, outputs, &w, Some(bias.clone())).unwrap();
        let by = Normalization::rms(&device, 1e-5, vec![1.0; outputs]).unwrap();
        let plain = run_linear(&device, &x, &map, Activation::None);
        let run = |mask: DropoutMask<'_>| {
            let mut stream = upload(&device, &start);
            let mut out = Tensor::default();
            let x = upload(&device, &x);
            let mask = Some(mask);
            let dtype = OutputDtype::F32;
            let of = LinearResidualNorm { x: &x, map: &map, mask, norm: &by, dtype };
            device.run(|| linear_residual_norm(&device, of, &mut stream, &mut out)).unwrap();
            (stream.to_host().unwrap(), out.to_host().unwrap())
        };
        let perturbed = dropout_rows(&device, &keys, p);
        let (stream, out) =
            run(DropoutMask::Sampled { layer: 4, site: Site::MlpOut, rows: &perturbed });
        for (r, key) in keys.iter().enumerate() {
            let scale = if key.is_some() { 1.0 / (1.0 - p) } else { 1.0 };
            let one = |j: usize| {
                start.row(r)[j] + if keeps(r, j) { plain.row(r)[j] * scale } else { 0.0 }
            };
            assert_close(
                stream.row(r),
                &(0..outputs).map(one).collect::<Vec<_>>(),
                1e-6,
                &format!("{device:?} row {r}"),
            );
            assert_close(
                out.row(r),
                &naive_norm(stream.row(r), &vec![1.0; outputs], None, 1e-5),
                3e-6,
                "the new stream's norm",
            );
        }
        let recorded = KeepMask::new(&device, rows, outputs, keep.clone()).unwrap();
        let (replayed, _) = run(DropoutMask::Recorded { p, keep: &recorded });
        for r in (0..rows).filter(|&r| keys[r].is_some()) {
            assert_close(
                replayed.row(r),
                stream.row(r),
                1e-6,
                "a sampled mask equals the recorded one",
            );
        }
    }
}

#[test]
fn dropout_equals_its_definition_for_sampled_and_recorded_masks() {
    let rows = 6;
    let cols = 53;
    let p = 0.3;
    let x = matrix(rows, cols, 24);
    let keys: Vec<Option<RngKey>> = (0..rows as u32)
        .map(|r| (r != 2).then_some(RngKey { seed: 5, question: 1, trajectory: r, position: 4 }))
        .collect();
    for device in devices() {
        let perturbed = dropout_rows(&device, &keys, p);
        let mask = DropoutMask::Sampled { layer: 0, site: Site::MlpOut, rows: &perturbed };
        let run = |mask| {
            let mut out = Tensor::default();
            device
                .run(|| dropout(&device, &upload(&device, &x), mask, OutputDtype::F32, &mut out))
                .unwrap();
            out.to_host().unwrap()
        };
        let keeps = |r: usize, j: usize| keys[r].is_none_or(|k| k.keeps(0, Site::MlpOut, j, p));
        let scale = |r: usize| if keys[r].is_some() { 1.0 / (1.0 - p) } else { 1.0 };
        let one = |r: usize, j: usize| if keeps(r, j) { x.row(r)[j] * scale(r) } else { 0.0 };
        let expected: Vec<f32> = (0..rows * cols).map(|i| one(i / cols, i % cols)).collect();
        assert_close(run(Some(mask)).data(), &expected, 1e-6, &format!("{device:?}"));
        let keep = (0..rows * cols).map(|i| keeps(i / cols, i % cols).into()).collect();
        let recorded = KeepMask::new(&device, rows, cols, keep).unwrap();
        let replayed = run(Some(DropoutMask::Recorded { p, keep: &recorded }));
        for r in (0..rows).filter(|&r| keys[r].is_some()) {
            assert_close(
                replayed.row(r),
                &expected[r * cols..(r + 1) * cols],
                1e-6,
                "a sampled mask equals the recorded one",
            );
        }
        assert_eq!(run(None), x, "{device:?}: without a mask a copy");
    }
}

/// The inputs of a layer's maps, of up to 16,384 columns.
#[test]
fn dropout_at_every_adapter_site_follows_the_rng_keys() {
    let p = 0.3;
    let row = |trajectory: u32| {
        let key = RngKey { seed: 6, question: 2, trajectory, position: 8 };
        Some(RowPerturbation { key, strength: p, sites: SiteSet::LORA })
    };
    let rows = vec![row(0), None, row(1)];
    for cols in [1, 53, 5_120, 16_381, 16_384] {
        let x = matrix(rows.len(), cols, 26);
        for device in devices() {
            let perturbed = PerturbedRows::new(&device, rows.clone()).unwrap();
            let run = |site| {
                let mask = Some(DropoutMask::Sampled { layer: 35, site, rows: &perturbed });
                let from = upload(&device, &x);
                let mut out = Tensor::default();
                device.run(|| dropout(&device, &from, mask, OutputDtype::F32, &mut out)).unwrap();
                out.to_host().unwrap()
            };
            for site in [Site::LoraQkv, Site::LoraAttnOut, Site::LoraMlpIn, Site::LoraMlpOut] {
                let one = |i: usize| match rows[i / cols] {
                    Some(row) if !row.key.keeps(35, site, i % cols, p) => 0.0,
                    Some(_) => x.data()[i] * (1.0 / (1.0 - p)),
                    None => x.data()[i],
                };
                let expected: Vec<f32> = (0..rows.len() * cols).map(one).collect();
                assert_eq!(run(site).data(), expected, "{device:?} {site:?} of {cols}");
            }
            assert_eq!(run(Site::MlpOut), x, "{device:?}: not a site of these rows");
        }
    }
}

#[test]
fn noise_equals_the_host_rng() {
    let key = RngKey { seed: 3, question: 1, trajectory: 0, position: 5 };
    let rows = vec![Some(RowPerturbation { key, strength: 0.4, sites: SiteSet::NOISE }), None];
    for device in devices() {
        let mut x = upload(&device, &matrix(2, 10, 25));
        add_noise(&device, &mut x, &PerturbedRows::new(&device, rows.clone()).unwrap()).unwrap();
        let mut expected = matrix(2, 10, 25);
        key.add_noise(0.4, expected.row_mut(0));
        assert_eq!(x.to_host().unwrap(), expected, "{device:?}");
    }
}

/// One row of every kind: different strengths at different sites, and unperturbed rows.
fn mixed_rows() -> Vec<Option<RowPerturbation>> {
    let row = |trajectory, strength, sites| {
        let key = RngKey { seed: 9, question: 4, trajectory, position: 21 };
        Some(RowPerturbation { key, strength, sites })
    };
    vec![
        row(0, 0.1, SiteSet::DROPOUT),
        None,
        row(1, 0.9, SiteSet::ATTN_OUT),
        row(2, 0.5, SiteSet::MLP_OUT),
        row(3, 0.3, SiteSet::NOISE),
        row(4, 1.5, SiteSet::NOISE),
        row(5, 0.7, SiteSet::EMPTY),
        row(6, 0.0, SiteSet::DROPOUT),
        row(7, 0.6, SiteSet::DROPOUT),
    ]
}

#[test]
fn dropout_rows_of_unlike_strengths_and_sites_equal_each_row_alone() {
    let rows = mixed_rows();
    let inputs = 24;
    let cols = 70;
    let x = matrix(rows.len(), inputs, 61);
    let w = numbers(inputs * cols, 62);
    let start = matrix(rows.len(), cols, 63);
    for device in devices() {
        let map = Linear::from_output_major(&device, inputs, cols, &w, None).unwrap();
        let by = Normalization::rms(&device, 1e-5, vec![1.0; cols]).unwrap();
        for site in [Site::AttnOut, Site::MlpOut] {
            // Separate dropout, and dropout fused with the linear map, for the rows `picked`.
            let run = |picked: &[usize]| {
                let perturbed = picked.iter().map(|&r| rows[r]).collect();
                let perturbed = PerturbedRows::new(&device, perturbed).unwrap();
                let mask = Some(DropoutMask::Sampled { layer: 2, site, rows: &perturbed });
                let pick = |x: &Tensor| upload(&device, &x.select(picked.iter().copied()));
                let mut stream = pick(&start);
                let from = pick(&x);
                let mut apart = Tensor::default();
                let mut normed = Tensor::default();
                let work = || {
                    dropout(&device, &pick(&start), mask, OutputDtype::F32, &mut apart)?;
                    let dtype = OutputDtype::F32;
                    let of = LinearResidualNorm { x: &from, map: &map, mask, norm: &by, dtype };
                    linear_residual_norm(&device, of, &mut stream, &mut normed)
                };
                device.run(work).unwrap();
                [apart, stream, normed].map(|x| x.to_host().unwrap())
            };
            let together = run(&(0..rows.len()).collect::<Vec<_>>());
            for (r, row) in rows.iter().enumerate() {
                let what = format!("{device:?} {site:?} row {r}");
                let [apart, stream, normed] = run(&[r]);
                assert_eq!(apart.data(), together[0].row(r), "{what}");
                for (alone, all) in [(stream, &together[1]), (normed, &together[2])] {
                    if device.is_cuda() {
                        assert_close(alone.data(), all.row(r), 1e-6, &what); // gemm rounding
                    } else {
                        assert_eq!(alone.data(), all.row(r), "{what}");
                    }
                }
                let expected = |j: usize| match row {
                    Some(row) if row.sites.contains(site) => {
                        let kept = row.key.keeps(2, site, j, row.strength);
                        if kept { start.row(r)[j] * (1.0 / (1.0 - row.strength)) } else { 0.0 }
                    }
                    _ => start.row(r)[j],
                };
                let expected: Vec<f32> = (0..cols).map(expected).collect();
                assert_eq!(together[0].row(r), expected, "{what}");
            }
        }
    }
}

#[test]
fn noise_rows_of_unlike_strengths_equal_each_row_alone() {
    let rows = mixed_rows();
    let x = matrix(mixed_rows().len(), 33, 64);
    for device in devices() {
        let run = |picked: &[usize]| {
            let perturbed = picked.iter().map(|&r| rows[r]).collect();
            let perturbed = PerturbedRows::new(&device, perturbed).unwrap();
            let mut x = upload(&device, &x.select(picked.iter().copied()));
            device.run(|| add_noise(&device, &mut x, &perturbed)).unwrap();
            x.to_host().unwrap()
        };
        let together = run(&(0..rows.len()).collect::<Vec<_>>());
        for (r, row) in rows.iter().enumerate() {
            assert_eq!(run(&[r]).data(), together.row(r), "{device:?} row {r}");
            let mut expected = x.row(r).to_vec();
            if let Some(row) = row.filter(|row| row.sites.contains(Site::Noise)) {
                row.key.add_noise(row.strength, &mut expected);
            }
            assert_eq!(together.row(r), expected, "{device:?} row {r}");
        }
    }
}

#[test]
#[should_panic(expected = "both dropout and noise")]
fn a_row_has_dropout_or_noise() {
    let key = RngKey { seed: 0, question: 0, trajectory: 0, position: 0 };
    let sites = SiteSet::NOISE.union(SiteSet::MLP_OUT);
    let row = RowPerturbation { key, strength: 0.5, sites };
    PerturbedRows::new(&Device::cpu(None).unwrap(), vec![Some(row)]).unwrap();
}
