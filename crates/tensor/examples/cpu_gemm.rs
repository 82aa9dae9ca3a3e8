//! Times the matrix products of a decoder of GPT-2's shape on the CPU, each in every precision, and
//! the measured f32 peak.
//!
//! `cpu_gemm [ROWS] [avx512|avx2|neon|portable]` prints one line of JSON per product. Shares of the
//! peak always refer to f32, also for int8, whose instructions have a higher peak.

use std::error::Error;
use std::time::Instant;

use latent_tts_tensor::ops::{Activation, Linear, OutputDtype, greedy_tokens, linear};
use latent_tts_tensor::{Device, DeviceError, Isa, Precision, Tensor, peak_flops};

const WIDTH: usize = 768;
const VOCABULARY: usize = 50_257;
const RUNS: usize = 7;

fn main() -> Result<(), Box<dyn Error>> {
    let mut rows = 256;
    let mut isa = Isa::detect();
    for argument in std::env::args().skip(1) {
        let named = |isa: &Isa| isa.to_string().replace('-', "").eq_ignore_ascii_case(&argument);
        match Isa::ALL.into_iter().find(named) {
            Some(named) => isa = named,
            None => rows = argument.parse()?,
        }
    }
    let peak = peak_flops(&Device::cpu_with(None, isa)?)?;
    println!("{{\"isa\":\"{isa}\",\"peak_gflops\":{:.1}}}", peak / 1e9);
    for precision in [Precision::F32, Precision::Int8] {
        let device = Device::cpu_in(None, isa, precision)?;
        for (name, inputs, outputs, activation) in [
            ("qkv", WIDTH, 3 * WIDTH, Activation::None),
            ("attention output", WIDTH, WIDTH, Activation::None),
            ("mlp up", WIDTH, 4 * WIDTH, Activation::GeluTanh),
            ("mlp down", 4 * WIDTH, WIDTH, Activation::None),
            ("lm head", WIDTH, VOCABULARY, Activation::None),
        ] {
            let map = Linear::from_output_major(
                &device,
                inputs,
                outputs,
                &numbers(inputs * outputs),
                None,
            )?;
            let x = Tensor::from_vec(rows, inputs, numbers(rows * inputs));
            let mut out = Tensor::default();
            let mut times = Vec::new();
            for _ in 0..RUNS {
                let start = Instant::now();
                device.run(|| -> Result<(), DeviceError> {
                    if outputs == VOCABULARY {
                        greedy_tokens(&device, &x, &map)
                            .map(|tokens| assert_eq!(tokens.len(), rows))
                    } else {
                        linear(&device, &x, &map, activation, OutputDtype::F32, &mut out)
                    }
                })?;
                times.push(start.elapsed().as_secs_f64());
            }
            times.sort_by(f64::total_cmp);
            let flops = 2.0 * (rows * inputs * outputs) as f64;
            println!(
                "{{\"product\":\"{name}\",\"dtype\":\"{precision}\",\"rows\":{rows},\"best_ms\":{:.3},\
                 \"median_ms\":{:.3},\"gflops\":{:.1},\"peak_share\":{:.3}}}",
                times[0] * 1e3,
                times[RUNS / 2] * 1e3,
                flops / times[0] / 1e9,
                flops / times[0] / peak
            );
        }
    }
    Ok(())
}

/// Numbers from -1 to 1.
fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i * 7919 % 1009) as f32 / 504.5 - 1.0).collect()
}
