//! Kernel sources: put together, compiled for the device by NVRTC, loaded once.

use super::{Gpu, cache::Cache, lock};
use crate::tensor::{DType, Device};
use cudarc::{
    driver::{result, sys},
    nvrtc::{result as nvrtc, sys as nvrtc_sys},
};
use std::{
    collections::HashMap,
    ffi::CString,
    sync::{Arc, Mutex},
};

/// What every kernel may use.
pub const PRELUDE: &str = include_str!("prelude.cuh");

/// Products of matrices inside a kernel.
pub const TILES: &str = include_str!("tiles.cuh");

/// What the matrix memories have in common.
const MEMORIES: &str = include_str!("memories.cuh");

/// What their gates do inside a chunk.
const FADE: &str = include_str!("fade.cuh");

/// A `.cu` file, compiled once for each element type: a static beside the op that launches its kernels.
pub struct Module {
    /// Its path under `src/`, in errors.
    pub name: &'static str,
    /// Its text, in pieces.
    pub parts: &'static [&'static str],
}

/// A module and the element type that it is compiled for.
pub(super) type Key = (&'static str, DType);

impl Module {
    /// A module of this text.
    pub const fn new(name: &'static str, parts: &'static [&'static str]) -> Module {
        Module { name, parts }
    }

    pub(super) fn key(&self, dtype: DType) -> Key {
        // Integers are only ever moved: as numbers of their size, whose bits loads and stores leave alone.
        (self.name, if dtype == DType::I32 { DType::F32 } else { dtype })
    }

    /// The file's text as it is now, in debug builds that are told where the sources are (`TAPEZOO_SOURCES`, the
    /// repository's root): a kernel can be edited and run again without building anything.
    fn edited(&self) -> Option<String> {
        if self.parts.len() == 1 { edited(self.name) } else { None }
    }

    /// The whole source for one element type: the types, the prelude, the file.
    pub fn source(&self, dtype: DType) -> String {
        // The largest number, the least normal one, and the fastest rate of decay (`ops::elementwise::fastest`).
        let (s, real, largest, least, fastest) = match dtype {
            DType::F32 | DType::I32 => ("float", "float", "3.40282347e38f", "1.17549435e-38f", "1e37f"),
            DType::F64 => ("double", "double", "1.7976931348623157e308", "2.2250738585072014e-308", "1e300"),
            DType::BF16 => ("bf16", "float", "3.40282347e38f", "1.17549435e-38f", "1e37f"),
        };
        let types = format!(
            "struct bf16 {{ unsigned short bits; }};\ntypedef {s} S;\ntypedef {real} real;\n#define LARGEST {largest}\n\
             #define LEAST_NORMAL {least}\n#define FASTEST {fastest}\n"
        );
        let mut text = types;
        let shared = [
            ("cuda/prelude.cuh", PRELUDE),
            ("cuda/tiles.cuh", TILES),
            ("cuda/memories.cuh", MEMORIES),
            ("cuda/fade.cuh", FADE),
        ];
        for (name, shared) in shared {
            let shared = edited(name).unwrap_or_else(|| shared.into());
            text += &format!("#line 1 \"src/{name}\"\n{shared}\n");
        }
        text += &format!("#line 1 \"src/{}\"\n", self.name);
        match self.edited() {
            Some(edited) => text += &edited,
            None => self.parts.iter().for_each(|part| text += part),
        }
        if real == "float" { suffixed(&text) } else { text }
    }
}

fn edited(name: &str) -> Option<String> {
    let root = std::env::var_os("TAPEZOO_SOURCES").filter(|_| cfg!(debug_assertions))?;
    std::fs::read_to_string(std::path::Path::new(&root).join("src").join(name)).ok()
}

/// Literals with a decimal point, made single: `0.5` to `0.5f`. In CUDA, as in C, they are double, and so would be
/// every operation that they take part in.
fn suffixed(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut out, mut i) = (String::with_capacity(text.len() + 64), 0);
    let word = |c: u8| c.is_ascii_alphanumeric() || c == b'_' || c == b'.';
    while i < bytes.len() {
        let start = i;
        let until = |end: &str| text[start + 2..].find(end).map_or(text.len(), |n| start + 2 + n + end.len());
        if text[i..].starts_with("//") {
            i = until("\n");
        } else if text[i..].starts_with("/*") {
            i = until("*/");
        } else if bytes[i] == b'"' {
            i += 1 + text[i + 1..].find('"').map_or(text.len() - i - 1, |n| n + 1);
        } else if word(bytes[i]) {
            let exponent = |i: usize| matches!(bytes[i], b'+' | b'-') && matches!(bytes[i - 1], b'e' | b'E');
            while i < bytes.len() && (word(bytes[i]) || (bytes[start].is_ascii_digit() && exponent(i))) {
                i += 1;
            }
            let literal = &text[start..i];
            if bytes[start].is_ascii_digit() && literal.parse::<f64>().is_ok() && literal.contains(['.', 'e']) {
                out += literal;
                out.push('f');
                continue;
            }
        } else {
            i += text[i..].chars().next().map_or(1, char::len_utf8);
        }
        out += &text[start..i];
    }
    out
}

/// A module on a device. The driver's handles belong to the device's primary context and are never unloaded.
#[derive(Clone, Copy)]
struct Loaded(sys::CUmodule);
// SAFETY: a handle to something that the driver guards itself.
unsafe impl Send for Loaded {}

/// A module, once it is loaded. Who holds its lock compiles it: others that want the same one wait, and those that want
/// another do not.
type Slot = Arc<Mutex<Option<Loaded>>>;

static LOADED: Mutex<Option<HashMap<(Device, Key), Slot>>> = Mutex::new(None);

impl Gpu {
    /// The kernel's handle; compiles and loads its module the first time.
    #[track_caller]
    pub(super) fn find(&self, module: &'static Module, kernel: &'static str, dtype: DType) -> sys::CUfunction {
        let key = (self.device, module.key(dtype));
        let slot = lock(&LOADED).get_or_insert_default().entry(key).or_default().clone();
        let mut loaded = lock(&slot);
        let handle = match *loaded {
            Some(found) => found,
            None => {
                let image = match compile(module.name, &module.source(dtype), &self.arch) {
                    Ok(image) => image,
                    Err(log) => self.fail(format!("{} for {dtype}: NVRTC: {log}", module.name)),
                };
                // SAFETY: the image is what NVRTC made for this device.
                let handle = unsafe { result::module::load_data(image.as_ptr().cast()) };
                let handle = Loaded(self.check(&format!("loading {}", module.name), handle));
                *loaded.insert(handle)
            }
        };
        drop(loaded);
        let name = CString::new(kernel).expect("a kernel's name has no zero in it");
        // SAFETY: modules are never unloaded.
        let function = unsafe { result::module::get_function(handle.0, name) };
        self.check(&format!("{}: there is no kernel '{kernel}'", module.name), function)
    }
}

/// Such as (13, 0).
pub(super) fn nvrtc_version() -> Result<(i32, i32), String> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both results are ours.
    unsafe { nvrtc_sys::nvrtcVersion(&mut major, &mut minor) }.result().map_err(|e| e.to_string())?;
    Ok((major, minor))
}

/// The binary for this architecture, from the cache if it is there, or the compiler's complaints.
fn compile(name: &str, source: &str, arch: &str) -> Result<Vec<u8>, String> {
    let options = [format!("--gpu-architecture={arch}"), "--std=c++17".into(), "-lineinfo".into()];
    let (major, minor) = nvrtc_version()?;
    let version = format!("NVRTC {major}.{minor}");
    Cache::of_user().get(&[source, &options.join(" "), &version], || build(name, source, &options))
}

fn build(name: &str, source: &str, options: &[String]) -> Result<Vec<u8>, String> {
    let c = |s: &str| CString::new(s).map_err(|_| "a source with a zero in it".to_string());
    let program = nvrtc::create_program(&c(source)?, Some(&c(name)?)).map_err(|e| e.to_string())?;
    // SAFETY: the program was just made, and is destroyed once, below.
    let done = unsafe { nvrtc::compile_program(program, options) };
    let image = match done {
        // SAFETY: as above; the program was compiled, and the buffer has the size that NVRTC says.
        Ok(()) => unsafe {
            let mut size = 0;
            let asked = nvrtc_sys::nvrtcGetCUBINSize(program, &mut size).result();
            let mut image = vec![0u8; size];
            asked
                .and_then(|()| nvrtc_sys::nvrtcGetCUBIN(program, image.as_mut_ptr().cast()).result())
                .map(|()| image)
                .map_err(|e| e.to_string())
        },
        // SAFETY: as above.
        Err(e) => Err(match unsafe { nvrtc::get_program_log(program) } {
            Ok(log) => log.iter().map(|&c| c as u8 as char).filter(|&c| c != '\0').collect(),
            Err(_) => e.to_string(),
        }),
    };
    // SAFETY: made above, and used no more.
    let _ = unsafe { nvrtc::destroy_program(program) };
    image
}
