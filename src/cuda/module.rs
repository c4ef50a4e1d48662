//! Kernel sources, put together.

use crate::dtype::DType;

/// Functions for every kernel.
pub const PRELUDE: &str = include_str!("prelude.cuh");

/// Products of matrices inside a kernel.
pub const TILES: &str = include_str!("tiles.cuh");

/// The code that all matrix memories share.
const MEMORIES: &str = include_str!("memories.cuh");

/// The decay by their gates inside a chunk.
const FADE: &str = include_str!("fade.cuh");

/// A `.cu` file: a static beside the op that launches its kernels.
///
/// Its kernels are declared as `KERNEL(name)(arguments)`, or with another of the macros in `prelude.cuh` and
/// `tiles.cuh`. A device compiles one of them at a time, for the element type that it is launched with: all kernels of
/// some files would take many seconds.
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

    /// The source for one element type: the types, the prelude, the file; of its kernels only this one.
    pub fn source_of(&self, dtype: DType, kernel: &str) -> String {
        format!("#define ONE_KERNEL\n#define ONLY_{kernel} ~, extern \"C\"\n{}", self.source(dtype))
    }

    /// The source for one element type, with all kernels.
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
