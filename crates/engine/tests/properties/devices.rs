//! One model on every instruction set and in every checkpoint format.

use std::collections::BTreeMap;
use std::path::Path;

use half::{bf16, f16};
use latent_tts_engine::{Engine, Output, Perturbation, Reasoner, reference};
use model::testkit::{CheckpointFamily, CheckpointSpec, WeightDtype, write_checkpoint};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use tensor::{Device, DeviceError, Isa, Precision};

use crate::common;
use crate::common::*;

fn run(reasoner: Reasoner, perturbation: Perturbation) -> Vec<Output> {
    let params = short_params(&reasoner, 4, perturbation);
    common::run(&Engine::new(reasoner), params, &questions()).unwrap()
}

/// The largest relative error of any row's thoughts.
fn latents_error(a: &[Output], b: &[Output]) -> f32 {
    let rows = a.iter().zip(b).flat_map(|(a, b)| a.trajectories.iter().zip(&b.trajectories));
    rows.map(|(a, b)| common_prefix_error(&a.latents, &b.latents)).fold(0.0, f32::max)
}

fn vector_isas() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_fused() && isa.is_present())
}

/// The vector kernels sum every element in the same order with the same fused steps, whatever the
/// vectors' width; the portable ones round twice where those round once, and tiles use a different
/// order.
#[test]
fn instruction_sets_agree() {
    let perturbations =
        [Perturbation::None, thought_dropout(0.2), Perturbation::Gaussian { std: 0.3 }];
    for family in FAMILIES {
        // Weights that are exact in bf16, for which tiles are used.
        let spec = CheckpointSpec { family, dtype: WeightDtype::Bf16, ..CheckpointSpec::default() };
        for perturbation in perturbations {
            let on = |isa| {
                let device = Device::cpu_with(Some(nonzero(2)), isa).unwrap();
                run(reasoner(&device, &spec), perturbation)
            };
            let portable = on(Isa::Portable);
            let vectors: Vec<_> = vector_isas().map(on).collect();
            if vectors.is_empty() {
                println!("skipped: this CPU has no vector kernels to compare");
            }
            let what = format!("{family:?}, {perturbation:?}");
            for other in &vectors {
                assert_all_same(&vectors[0], other, &what);
                let error = latents_error(other, &portable);
                assert!(error < 1e-4, "{what}: the error of portable kernels is {error:e}");
            }
            if Isa::Amx.is_present() {
                let error = latents_error(&on(Isa::Amx), &portable);
                assert!(error < 5e-4, "{what}: the error of portable kernels to AMX is {error:e}");
            } else {
                println!("skipped with AMX: this CPU has none");
            }
        }
    }
}

/// In int8 sums are integers; the remaining operations are in f32, as above. A question's
/// trajectories are the same alone and with others, on one thread and on three.
#[test]
fn int8_agrees_with_itself_on_every_vector_set_thread_and_batch() {
    for family in FAMILIES {
        let spec = CheckpointSpec { family, ..CheckpointSpec::default() };
        let on =
            |isa, threads| Device::cpu_in(Some(nonzero(threads)), isa, Precision::Int8).unwrap();
        let best = on(Isa::detect(), 3);
        let whole = run(reasoner(&best, &spec), thought_dropout(0.2));
        for isa in vector_isas() {
            let other = run(reasoner(&on(isa, 1), &spec), thought_dropout(0.2));
            assert_all_same(&whole, &other, &format!("{family:?} on {isa}"));
        }
        let engine = Engine::new(reasoner(&best, &spec));
        let params = short_params(engine.reasoner(), 4, thought_dropout(0.2));
        for (question, of_all) in questions().iter().zip(&whole) {
            let alone = common::run(&engine, params, std::slice::from_ref(question));
            let what = format!("{family:?}, a question alone");
            assert_all_same(std::slice::from_ref(of_all), &alone.unwrap(), &what);
        }
    }
}

#[test]
fn a_precision_that_a_device_does_not_have_is_refused() {
    let refused = Device::cpu_in(None, Isa::Portable, Precision::Bf16).unwrap_err();
    assert!(matches!(refused, DeviceError::UnsupportedPrecision { .. }));
    assert!(refused.to_string().contains("the CPU does not support bf16"), "{refused}");
    let refused = Device::cuda(0, Precision::Int8).unwrap_err();
    assert!(refused.to_string().contains("a GPU does not support int8"), "{refused}");
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
        let whole = run(reasoner(device(), &spec), thought_dropout(0.2));
        let spec = CheckpointSpec { shards: 3, ..spec };
        let sharded = run(reasoner(device(), &spec), thought_dropout(0.2));
        assert_all_same(&whole, &sharded, &format!("{family:?}"));
    }
}

/// A weight in half precision has a relative error of up to 2^-11 (f16) or 2^-8 (bf16). Over two
/// layers the random errors add up to some tens of that. Thoughts are not compared: if a mixture
/// selects its ten most probable tokens, or a sequence decides to stop, the smallest difference can
/// change them completely.
#[test]
fn weight_dtypes_agree_to_their_precision() {
    for family in FAMILIES {
        let hidden = |dtype| {
            let spec = CheckpointSpec { family, dtype, ..CheckpointSpec::default() };
            let reasoner = reasoner(device(), &spec);
            let prompt = prompt_of(&reasoner, &questions()[2]);
            reference::prompt_hidden(&reasoner, &prompt.tokens).unwrap()
        };
        let exact = hidden(WeightDtype::F32);
        for (dtype, tolerance) in [(WeightDtype::F16, 0.01), (WeightDtype::Bf16, 0.08)] {
            let error = relative_error(&hidden(dtype), &exact);
            assert!(error > 0.0 && error < tolerance, "{family:?}, {dtype:?}: {error}");
        }
    }
}

/// Widening is exact: 16-bit weights give the same outputs as the same weights stored in 32 bits.
#[test]
fn sixteen_bit_weights_are_widened_without_loss() {
    for family in FAMILIES {
        for dtype in [WeightDtype::F16, WeightDtype::Bf16] {
            let dir = tempfile::tempdir().unwrap();
            let spec = CheckpointSpec { family, dtype, ..CheckpointSpec::default() };
            write_checkpoint(dir.path(), &spec).unwrap();
            let narrow = run(load(device(), dir.path(), family), thought_dropout(0.2));
            write(dir.path(), &read(dir.path()));
            let wide = run(load(device(), dir.path(), family), thought_dropout(0.2));
            assert_all_same(&narrow, &wide, &format!("{family:?}, {dtype:?}"));
        }
    }
}

/// Tensors by name: shape and values.
type NamedWeights = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

fn read(dir: &Path) -> NamedWeights {
    let bytes = std::fs::read(dir.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let values = |view: &TensorView<'_>| -> Vec<f32> {
        let pairs = view.data().chunks(2).map(|b| [b[0], b[1]]);
        match view.dtype() {
            safetensors::Dtype::F16 => pairs.map(|b| f16::from_le_bytes(b).to_f32()).collect(),
            safetensors::Dtype::BF16 => pairs.map(|b| bf16::from_le_bytes(b).to_f32()).collect(),
            _ => view.data().chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
        }
    };
    let tensor =
        |(name, view): (String, TensorView<'_>)| (name, (view.shape().to_vec(), values(&view)));
    file.tensors().into_iter().map(tensor).collect()
}

fn write(dir: &Path, weights: &NamedWeights) {
    let bytes = |data: &[f32]| data.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let tensors: Vec<(&String, &Vec<usize>, Vec<u8>)> =
        weights.iter().map(|(name, (shape, data))| (name, shape, bytes(data))).collect();
    let views = tensors.iter().map(|(name, shape, data)| {
        (name, TensorView::new(safetensors::Dtype::F32, shape.to_vec(), data).unwrap())
    });
    let file = safetensors::serialize(views, None).unwrap();
    std::fs::write(dir.join("model.safetensors"), file).unwrap();
}

/// Adds `scale B A` to the weight of every module that has an adapter, by definition and in double
/// precision; `transposed` weights are stored (in, out). Returns how many modules have one.
fn merge_adapters(
    plain: &mut NamedWeights,
    adapted: &NamedWeights,
    scale: f64,
    transposed: bool,
) -> usize {
    let mut count = 0;
    for (name, (a_shape, a)) in adapted.iter().filter(|(name, _)| name.contains(".lora_A.")) {
        let b = &adapted[&name.replace("lora_A", "lora_B")].1;
        let module = name.split(".lora_A.").next().unwrap();
        let rank = a_shape[0];
        let inputs = a_shape[1];
        // The plain layout has another prefix before the same names.
        let tail = &module[module.find(".h.").or(module.find(".layers.")).unwrap()..];
        let is_module = |name: &str| name.ends_with(&format!("{tail}.weight"));
        let (_, weight) = plain.iter_mut().find(|(name, _)| is_module(name)).unwrap().1;
        let outputs = weight.len() / inputs;
        for o in 0..outputs {
            for i in 0..inputs {
                let delta: f64 = (0..rank)
                    .map(|k| f64::from(b[o * rank + k]) * f64::from(a[k * inputs + i]))
                    .sum();
                let at = if transposed { i * outputs + o } else { o * inputs + i };
                weight[at] = (f64::from(weight[at]) + scale * delta) as f32;
            }
        }
        count += 1;
    }
    count
}

/// Adapters of every family, merged by hand into the plain checkpoint of the same weights.
#[test]
fn unmerged_adapters_give_the_thoughts_of_merged_ones() {
    // The scale is alpha / rank: of adapter_config.json, or of the family's training script.
    let scales = [
        (CheckpointFamily::Coconut, 2.0),
        (CheckpointFamily::CodiGpt2, 0.25),
        (CheckpointFamily::CodiLlama, 0.25),
        (CheckpointFamily::Colar, 0.25),
        (CheckpointFamily::LatentSft, 2.0),
        (CheckpointFamily::Rot, 2.0),
    ];
    for (family, scale) in scales {
        let spec = CheckpointSpec { family, ..CheckpointSpec::default() };
        let plain = tempfile::tempdir().unwrap();
        let adapted = tempfile::tempdir().unwrap();
        write_checkpoint(plain.path(), &spec).unwrap();
        write_checkpoint(adapted.path(), &CheckpointSpec { lora: true, ..spec }).unwrap();
        let run_dir = |dir: &Path| run(load(device(), dir, family), thought_dropout(0.2));
        let base = run_dir(plain.path());
        let mut weights = read(plain.path());
        let adapters = read(adapted.path());
        let count = merge_adapters(&mut weights, &adapters, scale, is_gpt2(family));
        assert!(count > 0, "{family:?}: no adapters");
        write(plain.path(), &weights);
        let merged = run_dir(plain.path());
        let error = latents_error(&run_dir(adapted.path()), &merged);
        assert!(error < 1e-3, "{family:?}: {error:e} from the weights merged by hand");
        let effect = latents_error(&base, &merged);
        assert!(effect > 0.05, "{family:?}: the adapters change only {effect:e}");
    }
}
