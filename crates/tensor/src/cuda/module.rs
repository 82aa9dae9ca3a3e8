//! Kernels from source: compiled by NVRTC for the GPU at hand, kept on disk, loaded.
//!
//! A compiled file's name is a hash of everything that went into it (source, architecture, options,
//! compiler version), so a stale one is never found. It is written beside its place and renamed,
//! and starts with a hash of its contents; one that is damaged or cannot be written is as good as
//! absent.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};

use cudarc::driver::result as driver;
use cudarc::driver::sys;
use cudarc::nvrtc::{result as nvrtc, sys as nvrtc_sys};

use super::CudaError;

const PRELUDE: &str = include_str!("prelude.cuh");
const ATTENTION: &str = include_str!("attention.cuh");
const HOPPER: &str = include_str!("hopper.cuh");

/// Kernels that may ask for more shared memory than every GPU has.
pub(crate) const OPT_IN_SHARED: &[&str] = &[
    "attention_64",
    "attention_128",
    "attention_any",
    "attention_backward_32",
    "attention_backward_64",
    "attention_backward_128",
    "product_gelu",
    "product_placed",
    "product_reduced",
    "product_stored",
    "residual_768",
];

/// How the names of kernels begin that may start while the one before them on the stream ends, from
/// compute capability 9.0 on. Each waits for it (`after_previous` in prelude.cuh) before it touches
/// anything but what was uploaded for the pass.
const PDL_KERNELS: &[&str] = &[
    "add_norm_",
    "attention_32",
    "attention_64",
    "attention_128",
    "attention_any",
    "gather",
    "likeliest",
    "mixture",
    "place_any",
    "place_fast",
    "place_plain",
    "product_",
    "residual_768",
    "scale",
];

/// One `.cu` file, what it shares with others, and the kernels in it.
struct KernelSource {
    file: &'static str,
    shared: &'static str,
    text: &'static str,
    kernels: &'static [&'static str],
}

macro_rules! source {
    ($file:literal, $($kernel:literal),+) => { source!($file with "", $($kernel),+) };
    ($file:literal with $shared:expr, $($kernel:literal),+) => {
        KernelSource { file: $file, shared: $shared, text: include_str!($file), kernels: &[$($kernel),+] }
    };
}

/// A kernel of `product.cu`, which is compiled for each of them: together they would take seconds.
macro_rules! product {
    ($kernel:literal, $what:literal) => {
        source!("product.cu" with concat!(include_str!("hopper.cuh"), "#define KERNEL ", $kernel, "\n#define WHAT ", $what, "\n"), $kernel)
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
    source!("attention.cu" with ATTENTION, "attention_32", "attention_64", "attention_128", "attention_any"),
    source!(
        "attention_backward.cu" with ATTENTION,
        "attention_backward_32",
        "attention_backward_64",
        "attention_backward_128",
        "attention_backward_any"
    ),
    source!("embedding.cu", "gather", "scatter_add"),
    source!("linear.cu", "column_sums"),
    source!("loss.cu", "cross_entropy"),
    source!("dropout.cu", "dropout"),
    source!("noise.cu", "add_noise"),
    source!(
        "norm.cu",
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
    product!("product_gelu", "GELU"),
    product!("product_placed", "PLACED"),
    product!("product_reduced", "REDUCED"),
    product!("product_stored", "STORED"),
    source!("residual.cu" with HOPPER, "residual_768"),
    source!("rope.cu", "place_any", "place_fast", "place_plain", "place_backward"),
    source!("topk.cu", "likeliest", "likeliest_whole", "mixture"),
];

/// All kernels, loaded into the current context. They live as long as it does.
#[derive(Debug)]
pub(crate) struct Kernels(HashMap<&'static str, Kernel>);

/// A loaded kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel {
    pub(crate) function: sys::CUfunction,
    /// Whether it may start while the one before it ends.
    pub(crate) pdl: bool,
}

// SAFETY: a function handle is an opaque name that the driver lets every thread use.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

impl Kernels {
    /// Compiles or finds every kernel for a compute capability and loads it into the current
    /// context.
    pub(crate) fn load((major, minor): (i32, i32)) -> Result<Self, CudaError> {
        // Hopper's tensor cores take their instructions only in code that is for Hopper alone.
        let alone = if (major, minor) == (9, 0) { "a" } else { "" };
        let arch = format!("sm_{major}{minor}{alone}");
        let cache = cache_dir();
        // Side by side: a compilation takes a good part of a second, and there is one for each
        // file.
        let images: Vec<Result<Vec<u8>, CudaError>> = std::thread::scope(|scope| {
            let (arch, cache) = (&arch, cache.as_deref());
            let jobs: Vec<_> =
                SOURCES.iter().map(|s| scope.spawn(move || image(s, arch, cache))).collect();
            jobs.into_iter()
                .map(|j| j.join().unwrap_or_else(|e| std::panic::resume_unwind(e)))
                .collect()
        });
        let mut functions = HashMap::new();
        for (source, found) in SOURCES.iter().zip(images) {
            load_image(source, &found?, major >= 9, &mut functions)?;
        }
        Ok(Self(functions))
    }

    /// A kernel by name.
    ///
    /// # Panics
    /// If no source has it.
    pub(crate) fn get(&self, name: &str) -> Kernel {
        *self.0.get(name).unwrap_or_else(|| panic!("no kernel is called {name}"))
    }
}

/// Kernels may start early from compute capability 9.0 on.
fn load_image(
    source: &KernelSource,
    image: &[u8],
    can: bool,
    into: &mut HashMap<&'static str, Kernel>,
) -> Result<(), CudaError> {
    // SAFETY: the image is a whole cubin, as NVRTC made it; a context is current.
    let module = unsafe { driver::module::load_data(image.as_ptr().cast()) }
        .map_err(CudaError::driver("load a kernel"))?;
    for &kernel in source.kernels {
        let name = CString::new(kernel).unwrap_or_default();
        // SAFETY: the module was just loaded and is never unloaded.
        let function = unsafe { driver::module::get_function(module, name) }
            .map_err(CudaError::driver("find a kernel"))?;
        into.insert(
            kernel,
            Kernel { function, pdl: can && PDL_KERNELS.iter().any(|e| kernel.starts_with(e)) },
        );
    }
    Ok(())
}

/// A source's compiled form: from the cache, or made and put there.
fn image(source: &KernelSource, arch: &str, cache: Option<&Path>) -> Result<Vec<u8>, CudaError> {
    let place = cache.map(|dir| dir.join(format!("{}.cubin", cache_name(source, arch))));
    if let Some(found) = place.as_deref().and_then(read_cached) {
        return Ok(found);
    }
    let image = compile(source, arch)?;
    if let Some(place) = place {
        write_cached(&place, &image);
    }
    Ok(image)
}

fn options(arch: &str) -> [String; 2] {
    [format!("--gpu-architecture={arch}"), "--std=c++17".to_owned()]
}

fn cache_name(source: &KernelSource, arch: &str) -> String {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both point to integers that outlive the call.
    let known = unsafe { nvrtc_sys::nvrtcVersion(&mut major, &mut minor) }.result().is_ok();
    let version = if known { format!("{major}.{minor}") } else { String::new() };
    let parts = [PRELUDE, source.shared, source.text, &options(arch).join(" "), &version];
    let stem = source.file.trim_end_matches(".cu");
    format!(
        "{stem}-{arch}-{:016x}{:016x}",
        hash(&parts, 0xcbf2_9ce4_8422_2325),
        hash(&parts, 0x9ae1_6a3b_2f90_404f)
    )
}

/// FNV-1a over the parts and their lengths: names files and notices damage, guards against nobody.
fn hash<T: AsRef<[u8]>>(parts: &[T], start: u64) -> u64 {
    let step = |h: u64, byte: u8| (h ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    parts.iter().fold(start, |h, part| {
        let bytes = part.as_ref();
        (bytes.len() as u64).to_le_bytes().iter().chain(bytes).fold(h, |h, &b| step(h, b))
    })
}

fn checksum(image: &[u8]) -> [u8; 8] {
    hash(&[image], 0xcbf2_9ce4_8422_2325).to_le_bytes()
}

fn read_cached(place: &Path) -> Option<Vec<u8>> {
    let mut bytes = fs::read(place).ok()?;
    let found = bytes.get(..8)?.to_vec();
    bytes.drain(..8);
    (found == checksum(&bytes)).then_some(bytes)
}

fn write_cached(place: &Path, image: &[u8]) {
    let beside = place.with_extension(format!("{}.tmp", std::process::id()));
    let written = place
        .parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| fs::write(&beside, [&checksum(image), image].concat()));
    if written.and_then(|()| fs::rename(&beside, place)).is_err() {
        fs::remove_file(&beside).ok();
    }
}

fn cache_dir() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let base = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?;
    Some(base.join("latent-tts").join("kernels"))
}

/// Machine code of a source for an architecture. Needs NVRTC, but no GPU.
fn compile(source: &KernelSource, arch: &str) -> Result<Vec<u8>, CudaError> {
    let failed = |log: String| CudaError::Compile { file: source.file, arch: arch.to_owned(), log };
    let text =
        format!("{PRELUDE}\n{}\n#line 1 \"{}\"\n{}", source.shared, source.file, source.text);
    let text = CString::new(text).map_err(|e| failed(e.to_string()))?;
    let name = CString::new(source.file).map_err(|e| failed(e.to_string()))?;
    let program = nvrtc::create_program(&text, Some(&name)).map_err(|e| failed(e.to_string()))?;
    // SAFETY: the program lives until `destroy_program`, its text and name longer.
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
    // SAFETY: the buffer has the size that was asked for.
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

    /// Every kernel for every architecture that is promised. NVRTC needs no GPU; `.ci/kernels`
    /// brings it.
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
            for source in SOURCES {
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
        let place = dir.join("k.cubin");
        write_cached(&place, b"machine code");
        assert_eq!(read_cached(&place).as_deref(), Some(&b"machine code"[..]));
        fs::write(&place, b"short").unwrap();
        assert_eq!(read_cached(&place), None);
        write_cached(&place, b"machine code");
        let mut bytes = fs::read(&place).unwrap();
        bytes[10] ^= 1;
        fs::write(&place, bytes).unwrap();
        assert_eq!(read_cached(&place), None);
        write_cached(Path::new("/proc/none/k.cubin"), b"x"); // cannot be written: ignored
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn cache_names_depend_on_source_and_architecture() {
        assert_ne!(hash(&["ab", "c"], 1), hash(&["a", "bc"], 1));
        assert_ne!(hash(&["a"], 1), hash(&["a"], 2));
    }
}
