//! One model on every instruction set and in every form of its checkpoint.

use std::collections::BTreeMap;
use std::path::Path;

use engine::{Engine, Outcome, Perturbation, Reasoner};
use half::{bf16, f16};
use model::testkit::{CheckpointFamily, CheckpointSpec, WeightDtype, write_checkpoint};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use tensor::{Device, Isa};

use crate::common::*;

fn run(reasoner: &Reasoner, perturbation: Perturbation) -> Vec<Outcome> {
    ask(
        Engine { reasoner, reward_model: None, params: settings(reasoner, 4, perturbation) },
        &questions(),
    )
    .unwrap()
}

/// The largest relative distance of any row's thoughts.
fn distance(a: &[Outcome], b: &[Outcome]) -> f32 {
    let rows = a.iter().zip(b).flat_map(|(a, b)| a.thoughts.iter().zip(&b.thoughts));
    rows.map(|(a, b)| apart_as_far(a, b)).fold(0.0, f32::max)
}

/// The vector kernels sum every element in one order with the same fused steps, whatever the
/// vectors' width; the portable ones round twice where those round once.
#[test]
fn instruction_sets_agree() {
    for family in FAMILIES {
        let spec = CheckpointSpec { family, ..CheckpointSpec::default() };
        for perturbation in
            [Perturbation::None, thoughtful(0.2), Perturbation::Gaussian { std: 0.3 }]
        {
            let on = |isa| {
                run(&reasoner(&Device::cpu_with(Some(count(2)), isa).unwrap(), &spec), perturbation)
            };
            let portable = on(Isa::Portable);
            let vectors: Vec<_> = [Isa::Avx512, Isa::Avx2]
                .into_iter()
                .filter(|isa| isa.is_present())
                .map(on)
                .collect();
            if vectors.is_empty() {
                println!(
                    "skipped: this processor has no vector kernels to compare with the portable ones"
                );
            }
            for other in &vectors {
                let what = format!("{family:?}, {perturbation:?}");
                vectors[0].iter().zip(other).for_each(|(a, b)| assert_same(a, b, &what));
                let far = distance(other, &portable);
                assert!(far < 1e-4, "{what}: portable kernels are {far:e} away");
            }
        }
    }
}

#[test]
fn an_absent_instruction_set_is_refused() {
    for isa in Isa::ALL.into_iter().filter(|isa| !isa.is_present()) {
        assert!(Device::cpu_with(None, isa).is_err(), "{isa}");
    }
}

#[test]
fn shards_of_a_checkpoint_are_the_checkpoint() {
    for family in FAMILIES {
        let spec = CheckpointSpec { family, ..CheckpointSpec::default() };
        let whole = run(&reasoner(device(), &spec), thoughtful(0.2));
        let sharded =
            run(&reasoner(device(), &CheckpointSpec { shards: 3, ..spec }), thoughtful(0.2));
        whole.iter().zip(&sharded).for_each(|(a, b)| assert_same(a, b, &format!("{family:?}")));
    }
}

/// A weight in half precision is off by up to 2^-11 (f16) or 2^-8 (bf16) of itself. Over two layers
/// the errors add up to some tens of that, at random. Thoughts are not compared: where a mixture
/// takes its ten likeliest tokens, or a row decides to stop, the smallest difference can change
/// them wholly.
#[test]
fn number_formats_agree_to_their_precision() {
    for family in FAMILIES {
        let hidden = |dtype| {
            let reasoner =
                reasoner(device(), &CheckpointSpec { family, dtype, ..CheckpointSpec::default() });
            engine::reference::prompt_hidden(
                &reasoner,
                &prompted(&reasoner, &questions()[2]).tokens,
            )
            .unwrap()
        };
        let exact = hidden(WeightDtype::F32);
        for (dtype, tolerance) in [(WeightDtype::F16, 0.01), (WeightDtype::Bf16, 0.08)] {
            let far = apart(&hidden(dtype), &exact);
            assert!(far > 0.0 && far < tolerance, "{family:?}, {dtype:?}: {far}");
        }
    }
}

/// Widening loses nothing: 16-bit weights think exactly as the same weights written with 32 bits.
#[test]
fn sixteen_bits_are_their_thirty_two_to_the_bit() {
    for family in FAMILIES {
        for dtype in [WeightDtype::F16, WeightDtype::Bf16] {
            let dir = tempfile::tempdir().unwrap();
            write_checkpoint(
                dir.path(),
                &CheckpointSpec { family, dtype, ..CheckpointSpec::default() },
            )
            .unwrap();
            let narrow = run(&load(device(), dir.path(), family), thoughtful(0.2));
            write(dir.path(), &read(dir.path()));
            let wide = run(&load(device(), dir.path(), family), thoughtful(0.2));
            narrow
                .iter()
                .zip(&wide)
                .for_each(|(a, b)| assert_same(a, b, &format!("{family:?}, {dtype:?}")));
        }
    }
}

/// Weights under their names, with shapes.
type WeightBytes = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

fn read(dir: &Path) -> WeightBytes {
    let bytes = std::fs::read(dir.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let numbers = |view: &TensorView<'_>| -> Vec<f32> {
        let pairs = view.data().chunks(2).map(|b| [b[0], b[1]]);
        match view.dtype() {
            safetensors::Dtype::F16 => pairs.map(|b| f16::from_le_bytes(b).to_f32()).collect(),
            safetensors::Dtype::BF16 => pairs.map(|b| bf16::from_le_bytes(b).to_f32()).collect(),
            _ => view.data().chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
        }
    };
    let one =
        |(name, view): (String, TensorView<'_>)| (name, (view.shape().to_vec(), numbers(&view)));
    file.tensors().into_iter().map(one).collect()
}

fn write(dir: &Path, weights: &WeightBytes) {
    let bytes: Vec<(&String, &Vec<usize>, Vec<u8>)> = weights
        .iter()
        .map(|(name, (shape, data))| {
            (name, shape, data.iter().flat_map(|x| x.to_le_bytes()).collect())
        })
        .collect();
    let views = bytes.iter().map(|(name, shape, data)| {
        (name, TensorView::new(safetensors::Dtype::F32, shape.to_vec(), data).unwrap())
    });
    std::fs::write(dir.join("model.safetensors"), safetensors::serialize(views, None).unwrap())
        .unwrap();
}

/// `W + scale B A` for every module that has an adapter, by its definition and in double precision.
fn merged(plain: &mut WeightBytes, adapted: &WeightBytes, scale: f64, conv: bool) -> usize {
    let mut count = 0;
    for (name, (a_shape, a)) in adapted.iter().filter(|(name, _)| name.contains(".lora_A.")) {
        let b = &adapted[&name.replace("lora_A", "lora_B")].1;
        let module = name.split(".lora_A.").next().unwrap();
        let (rank, inputs) = (a_shape[0], a_shape[1]);
        // The plain layout has another wrapper around the same names.
        let tail = &module[module.find(".h.").or(module.find(".layers.")).unwrap()..];
        let weight = plain
            .iter_mut()
            .find(|(plain, _)| plain.ends_with(&format!("{tail}.weight")))
            .unwrap()
            .1;
        let outputs = weight.1.len() / inputs;
        for o in 0..outputs {
            for i in 0..inputs {
                let delta: f64 = (0..rank)
                    .map(|k| f64::from(b[o * rank + k]) * f64::from(a[k * inputs + i]))
                    .sum();
                let at = if conv { i * outputs + o } else { o * inputs + i };
                weight.1[at] = (f64::from(weight.1[at]) + scale * delta) as f32;
            }
        }
        count += 1;
    }
    count
}

/// Adapters of every family, merged by hand into the plain checkpoint of the same weights.
#[test]
fn unmerged_adapters_think_as_merged_ones() {
    // The scale is alpha / rank: of adapter_config.json, or of the family's training script.
    let scales = [
        (CheckpointFamily::Coconut, 2.0),
        (CheckpointFamily::CodiGpt2, 0.25),
        (CheckpointFamily::CodiLlama, 0.25),
        (CheckpointFamily::Colar, 0.25),
    ];
    for (family, scale) in
        scales.into_iter().chain([(CheckpointFamily::LatentSft, 2.0), (CheckpointFamily::Rot, 2.0)])
    {
        let spec = CheckpointSpec { family, ..CheckpointSpec::default() };
        let (plain, adapted) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write_checkpoint(plain.path(), &spec).unwrap();
        write_checkpoint(adapted.path(), &CheckpointSpec { lora: true, ..spec }).unwrap();
        let untouched = run(&load(device(), plain.path(), family), thoughtful(0.2));
        let mut weights = read(plain.path());
        assert!(
            merged(&mut weights, &read(adapted.path()), scale, gpt2(family)) > 0,
            "{family:?}: no adapters"
        );
        write(plain.path(), &weights);
        let by_hand = run(&load(device(), plain.path(), family), thoughtful(0.2));
        let far =
            distance(&run(&load(device(), adapted.path(), family), thoughtful(0.2)), &by_hand);
        assert!(far < 1e-3, "{family:?}: {far:e} from the weights merged by hand");
        let moved = distance(&untouched, &by_hand);
        assert!(
            moved > 0.05,
            "{family:?}: the adapters change too little ({moved:e}) to be missed"
        );
    }
}
