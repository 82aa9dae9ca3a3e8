//! Kernels: compiled from source by NVRTC for the present GPU, cached on disk, loaded as modules.
//!
//! A cubin's file name is a hash of all its inputs (source, architecture, options, compiler
//! version), so a stale one is never found. It is written to a temporary file and renamed, and
//! starts with a checksum; a corrupt one is treated as missing, and failures to write are ignored.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::result as driver;
use cudarc::driver::sys;
use cudarc::nvrtc::{result as nvrtc, sys as nvrtc_sys};
use record::Fingerprint;

use super::CudaError;

const PRELUDE: &str = include_str!("prelude.cuh");
const ATTENTION: &str = include_str!("attention.cuh");
const FP8: &str = include_str!("fp8.cuh");

/// The headers of kernels with Hopper tiles: for bf16 operands, and for e4m3.
macro_rules! tile_headers {
    ($define:literal) => {
        concat!(
            $define,
            include_str!("fp8.cuh"),
            include_str!("hopper.cuh"),
            include_str!("hopper_tile.cuh")
        )
    };
}

/// Kernels whose dynamic shared memory may exceed the default limit of 48 KB.
pub(crate) const OPT_IN_SHARED: &[&str] = &[
    "attention_64",
    "attention_128",
    "attention_any",
    "attention_backward_32",
    "attention_backward_64",
    "attention_backward_128",
    "gemm_argmax",
    "gemm_gelu",
    "gemm_qkv",
    "gemm_store",
    "residual_768",
];

/// The same for the kernels of a device of precision fp8.
pub(crate) const FP8_OPT_IN_SHARED: &[&str] = &[
    "attention_fp8_64",
    "attention_fp8_128",
    "gemm_fp8_argmax",
    "gemm_fp8_gelu",
    "gemm_fp8_qkv",
    "gemm_fp8_store",
    "residual_fp8_768",
];

/// Prefixes of the names of kernels that are launched with programmatic dependent launch (PDL),
/// from compute capability 9.0 on: they may start while the previous kernel on the stream ends.
/// Each waits for it (`griddep_wait` in prelude.cuh) before it accesses anything but the staged
/// inputs of the pass.
const PDL_KERNELS: &[&str] = &[
    "add_norm_",
    "argmax_",
    "sample_rows",
    "attention_32",
    "attention_64",
    "attention_128",
    "attention_any",
    "attention_fp8_",
    "cache_kv",
    "dequantize_rows",
    "gather",
    "gemm_",
    "quantize_rows",
    "residual_768",
    "residual_fp8_768",
    "rope_and_cache_any",
    "rope_and_cache_bf16",
    "rope_and_cache_fp8",
    "scale", // and `scale_rows`
    "swiglu_fp8",
    "top_k_mixture",
];

/// One `.cu` file, the headers that are prepended to it, and its kernels.
struct KernelSource {
    file: &'static str,
    headers: &'static str,
    text: &'static str,
    kernels: &'static [&'static str],
}

macro_rules! source {
    ($file:literal, $($kernel:literal),+) => { source!($file with "", $($kernel),+) };
    ($file:literal with $headers:expr, $($kernel:literal),+) => {
        KernelSource {
            file: $file,
            headers: $headers,
            text: include_str!($file),
            kernels: &[$($kernel),+],
        }
    };
}

/// One kernel of `hopper_gemm.cu`, which is compiled separately for each epilogue: together they
/// would take seconds.
macro_rules! gemm_source {
    ($kernel:literal, $epilogue:literal) => {
        source!("hopper_gemm.cu" with concat!(
            tile_headers!(""),
            "#define KERNEL ", $kernel, "\n#define EPILOGUE ", $epilogue, "\n"
        ), $kernel)
    };
}

/// The same for e4m3.
macro_rules! fp8_gemm_source {
    ($kernel:literal, $epilogue:literal) => {
        source!("hopper_gemm.cu" with concat!(
            tile_headers!("#define E4M3\n"),
            "#define KERNEL ", $kernel, "\n#define EPILOGUE ", $epilogue, "\n"
        ), $kernel)
    };
}

const SOURCES: &[KernelSource] = &[
    source!(
        "activation.cu",
        "bias_activation",
        "activate",
        "activate_backward",
        "swiglu",
        "swiglu_backward",
        "scale",
        "transpose"
    ),
    source!(
        "attention.cu" with ATTENTION,
        "attention_32",
        "attention_64",
        "attention_128",
        "attention_any"
    ),
    source!(
        "attention_backward.cu" with ATTENTION,
        "attention_backward_32",
        "attention_backward_64",
        "attention_backward_128",
        "attention_backward_any"
    ),
    source!("embedding.cu", "gather", "scatter_add"),
    source!("f32_gemm.cu", "f32_gemm"),
    source!("linear.cu", "column_sums"),
    source!("mma_gemm.cu" with ATTENTION, "mma_gemm"),
    source!("loss.cu", "cross_entropy"),
    source!("dropout.cu", "dropout"),
    source!("noise.cu", "add_noise"),
    source!(
        "norm.cu" with FP8,
        "add_norm_1_0",
        "add_norm_1_1",
        "add_norm_1_2",
        "add_norm_4_0",
        "add_norm_4_1",
        "add_norm_4_2",
        "add_norm_16_0",
        "add_norm_16_1",
        "add_norm_16_2",
        "norm_backward_1_2",
        "norm_backward_4_2",
        "norm_backward_4_4",
        "norm_backward_16_8"
    ),
    source!("optimizer.cu", "adamw", "sum_of_squares"),
    gemm_source!("gemm_argmax", "ARGMAX"),
    gemm_source!("gemm_gelu", "GELU"),
    gemm_source!("gemm_qkv", "QKV"),
    gemm_source!("gemm_store", "STORE"),
    source!("residual.cu" with tile_headers!(""), "residual_768"),
    source!(
        "qkv.cu",
        "rope_and_cache_any",
        "rope_and_cache_bf16",
        "cache_kv",
        "rope_and_cache_backward",
        "qk_norm_backward"
    ),
    source!("regression.cu", "smooth_l1_moments", "smooth_l1", "smooth_l1_losses", "gaussian_loss"),
    source!("rows.cu", "add_scaled", "scale_rows"),
    source!("sample.cu", "sample_rows"),
    source!("topk.cu", "argmax_rows", "argmax_partials", "top_k_mixture"),
];

/// The additional kernels of a device of precision fp8: others neither compile nor load them.
const FP8_SOURCES: &[KernelSource] = &[
    source!(
        "attention.cu" with concat!(
            include_str!("fp8.cuh"),
            include_str!("attention.cuh"),
            "#define E4M3\n"
        ),
        "attention_fp8_32",
        "attention_fp8_64",
        "attention_fp8_128"
    ),
    source!(
        "fp8.cu" with FP8,
        "quantize_rows",
        "measure_rows",
        "quantize",
        "dequantize_rows",
        "swiglu_fp8"
    ),
    source!(
        "qkv.cu" with concat!(include_str!("fp8.cuh"), "#define E4M3\n"),
        "rope_and_cache_fp8"
    ),
    fp8_gemm_source!("gemm_fp8_argmax", "ARGMAX"),
    fp8_gemm_source!("gemm_fp8_gelu", "GELU"),
    fp8_gemm_source!("gemm_fp8_qkv", "QKV"),
    fp8_gemm_source!("gemm_fp8_store", "STORE"),
    source!("residual.cu" with tile_headers!("#define E4M3\n"), "residual_fp8_768"),
];

/// All kernels, loaded into the current context and living as long as it does, each with a flag
/// whether it was launched.
#[derive(Debug)]
pub(crate) struct Kernels(HashMap<&'static str, (Kernel, AtomicBool)>);

/// A loaded kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel {
    pub(crate) function: sys::CUfunction,
    /// Whether it is launched with PDL.
    pub(crate) pdl: bool,
}

// SAFETY: an opaque handle that the driver lets every thread use.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

impl Kernels {
    /// Compiles every kernel for a compute capability, or takes it from the cache, and loads it
    /// into the current context; with the fp8 kernels if requested.
    pub(crate) fn load((major, minor): (i32, i32), fp8: bool) -> Result<Self, CudaError> {
        let needed = || SOURCES.iter().chain(if fp8 { FP8_SOURCES } else { &[] });
        // wgmma and TMA need the architecture-specific target sm_90a.
        let specific = if (major, minor) == (9, 0) { "a" } else { "" };
        let arch = format!("sm_{major}{minor}{specific}");
        let cache = cache_dir();
        // In parallel: each compilation takes a considerable part of a second.
        let images: Vec<Result<Vec<u8>, CudaError>> = std::thread::scope(|scope| {
            let arch = &arch;
            let cache = cache.as_deref();
            let threads: Vec<_> =
                needed().map(|s| scope.spawn(move || image(s, arch, cache))).collect();
            threads
                .into_iter()
                .map(|t| t.join().unwrap_or_else(|e| std::panic::resume_unwind(e)))
                .collect()
        });
        let mut functions = HashMap::new();
        for (source, found) in needed().zip(images) {
            load_image(source, &found?, major >= 9, &mut functions)?;
        }
        let unlaunched = |(name, kernel)| (name, (kernel, AtomicBool::new(false)));
        Ok(Self(functions.into_iter().map(unlaunched).collect()))
    }

    /// A kernel by name.
    ///
    /// # Panics
    /// If no source has it.
    pub(crate) fn get(&self, name: &str) -> Kernel {
        self.entry(name).0
    }

    /// [`Self::get`] for a launch, which is recorded.
    pub(crate) fn launch(&self, name: &str) -> Kernel {
        let (kernel, launched) = self.entry(name);
        launched.store(true, Ordering::Relaxed);
        *kernel
    }

    fn entry(&self, name: &str) -> &(Kernel, AtomicBool) {
        self.0.get(name).unwrap_or_else(|| panic!("there is no kernel {name}"))
    }

    /// The kernels that were launched, sorted by name.
    pub(crate) fn launched(&self) -> Vec<&'static str> {
        let launched = self.0.iter().filter(|(_, (_, launched))| launched.load(Ordering::Relaxed));
        let mut names: Vec<&str> = launched.map(|(name, _)| *name).collect();
        names.sort_unstable();
        names
    }
}

/// Loads a cubin and looks up its kernels; `pdl`: whether the GPU supports PDL.
fn load_image(
    source: &KernelSource,
    image: &[u8],
    pdl: bool,
    into: &mut HashMap<&'static str, Kernel>,
) -> Result<(), CudaError> {
    // SAFETY: the image is a cubin of NVRTC; a context is current.
    let module = unsafe { driver::module::load_data(image.as_ptr().cast()) }
        .map_err(CudaError::driver("load a kernel"))?;
    for &kernel in source.kernels {
        let name = CString::new(kernel).unwrap_or_default();
        // SAFETY: the module was just loaded and is never unloaded.
        let function = unsafe { driver::module::get_function(module, name) }
            .map_err(CudaError::driver("find a kernel"))?;
        into.insert(
            kernel,
            Kernel { function, pdl: pdl && PDL_KERNELS.iter().any(|e| kernel.starts_with(e)) },
        );
    }
    Ok(())
}

/// A source's cubin: from the cache, or compiled and stored there.
fn image(source: &KernelSource, arch: &str, cache: Option<&Path>) -> Result<Vec<u8>, CudaError> {
    let path = cache.map(|dir| dir.join(format!("{}.cubin", cache_name(source, arch))));
    if let Some(found) = path.as_deref().and_then(read_cached) {
        return Ok(found);
    }
    let image = compile(source, arch)?;
    if let Some(path) = path {
        write_cached(&path, &image);
    }
    Ok(image)
}

fn options(arch: &str) -> [String; 2] {
    [format!("--gpu-architecture={arch}"), "--std=c++17".to_owned()]
}

fn cache_name(source: &KernelSource, arch: &str) -> String {
    let mut major = 0;
    let mut minor = 0;
    // SAFETY: both point to integers that outlive the call.
    let known = unsafe { nvrtc_sys::nvrtcVersion(&mut major, &mut minor) }.result().is_ok();
    let version = if known { format!("{major}.{minor}") } else { String::new() };
    let parts = [PRELUDE, source.headers, source.text, &options(arch).join(" "), &version];
    let stem = source.file.trim_end_matches(".cu");
    // Two digests with different salts: 64 bits are few for files that are trusted by name.
    let digest = |name| {
        let with = |digest: Fingerprint, part: &&str| digest.with(name, part.as_bytes());
        parts.iter().fold(Fingerprint::default(), with).finish()
    };
    format!("{stem}-{arch}-{}{}", digest("source"), digest("kernel"))
}

/// The bytes of a [`checksum`]: the hexadecimal digits of a fingerprint.
const CHECKSUM_BYTES: usize = 16;

fn checksum(image: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let digits = Fingerprint::default().with("image", image).finish();
    std::array::from_fn(|i| digits.as_bytes()[i])
}

fn read_cached(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = fs::read(path).ok()?;
    let found = bytes.get(..CHECKSUM_BYTES)?.to_vec();
    bytes.drain(..CHECKSUM_BYTES);
    (found == checksum(&bytes)).then_some(bytes)
}

fn write_cached(path: &Path, image: &[u8]) {
    let made = path.parent().map_or(Ok(()), fs::create_dir_all);
    // A cache that cannot be written only costs time at the next start.
    let _ =
        made.and_then(|()| record::files::write_atomic(path, &[&checksum(image), image].concat()));
}

fn cache_dir() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let base = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?;
    Some(base.join("latent-tts").join("kernels"))
}

/// Compiles a source to a cubin for an architecture. Needs NVRTC, but no GPU.
fn compile(source: &KernelSource, arch: &str) -> Result<Vec<u8>, CudaError> {
    let failed = |log: String| CudaError::Compile { file: source.file, arch: arch.to_owned(), log };
    let text =
        format!("{PRELUDE}\n{}\n#line 1 \"{}\"\n{}", source.headers, source.file, source.text);
    let text = CString::new(text).map_err(|e| failed(e.to_string()))?;
    let name = CString::new(source.file).map_err(|e| failed(e.to_string()))?;
    let program = nvrtc::create_program(&text, Some(&name)).map_err(|e| failed(e.to_string()))?;
    // SAFETY: the program is alive until `destroy_program`, its text and name longer.
    let compiled = unsafe { nvrtc::compile_program(program, &options(arch)) };
    let image = match compiled {
        // SAFETY: as above, and it was compiled.
        Ok(()) => unsafe { cubin(program) }.map_err(|e| failed(e.to_string())),
        // SAFETY: as above.
        Err(e) => Err(failed(format!("{e}: {}", unsafe { log(program) }))),
    };
    // SAFETY: created above and destroyed once.
    unsafe { nvrtc::destroy_program(program) }.ok();
    image
}

/// # Safety
/// `program` must be compiled and not destroyed.
unsafe fn cubin(program: nvrtc_sys::nvrtcProgram) -> Result<Vec<u8>, nvrtc::NvrtcError> {
    let mut size = 0;
    // SAFETY: the program is alive, `size` outlives the call.
    unsafe { nvrtc_sys::nvrtcGetCUBINSize(program, &mut size) }.result()?;
    let mut image = vec![0u8; size];
    // SAFETY: the buffer has the size that was queried.
    unsafe { nvrtc_sys::nvrtcGetCUBIN(program, image.as_mut_ptr().cast()) }.result()?;
    Ok(image)
}

/// # Safety
/// `program` must not be destroyed.
unsafe fn log(program: nvrtc_sys::nvrtcProgram) -> String {
    // SAFETY: the program is alive.
    let log = unsafe { nvrtc::get_program_log(program) }.unwrap_or_default();
    let bytes: Vec<u8> = log.into_iter().map(|c| c as u8).filter(|&b| b != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every kernel for every supported architecture. NVRTC needs no GPU; `.ci/kernels` downloads
    /// it.
    #[test]
    fn every_kernel_compiles() {
        // SAFETY: only opens the library.
        if !unsafe { nvrtc_sys::is_culib_present() } {
            assert!(
                std::env::var_os("LATENT_TTS_NEED_NVRTC").is_none(),
                "NVRTC is not on the library path"
            );
            println!("skipped: NVRTC is not on the library path (.ci/kernels brings it)");
            return;
        }
        for arch in ["sm_80", "sm_90", "sm_90a"] {
            for source in SOURCES.iter().chain(FP8_SOURCES) {
                let image = compile(source, arch).unwrap_or_else(|e| panic!("{e}"));
                for kernel in source.kernels {
                    let named = image.windows(kernel.len()).any(|w| w == kernel.as_bytes());
                    assert!(named, "{} has no kernel {kernel}", source.file);
                }
                println!("{} for {arch}: {} bytes", source.file, image.len());
            }
        }
    }

    #[test]
    fn a_corrupt_cache_entry_is_ignored() {
        let dir = std::env::temp_dir().join(format!("latent-tts-kernels-{}", std::process::id()));
        let path = dir.join("k.cubin");
        write_cached(&path, b"machine code");
        assert_eq!(read_cached(&path).as_deref(), Some(&b"machine code"[..]));
        fs::write(&path, b"short").unwrap();
        assert_eq!(read_cached(&path), None);
        write_cached(&path, b"machine code");
        let mut bytes = fs::read(&path).unwrap();
        bytes[10] ^= 1;
        fs::write(&path, bytes).unwrap();
        assert_eq!(read_cached(&path), None);
        write_cached(Path::new("/proc/none/k.cubin"), b"x"); // cannot be written: ignored
        fs::remove_dir_all(dir).unwrap();
    }
}
