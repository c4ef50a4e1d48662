"""A kernel file to machine code, as src/cuda/module.rs compiles it: NVRTC from pip, which needs no GPU, and the
nvdisasm that comes with Triton. What was compiled before is kept in target/sass/cache."""

import ctypes
import functools
import hashlib
import importlib.metadata
import json
import re
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

SITE = Path(sysconfig.get_paths()["purelib"])
TOOLS = SITE / "triton/backends/nvidia/bin"
CACHE = Path("target/sass/cache")
# As in module.rs: S, real, the largest number, the least normal one, the fastest rate of decay.
TYPES = {
    "f32": ("float", "float", "3.40282347e38f", "1.17549435e-38f", "1e37f"),
    "f64": ("double", "double", "1.7976931348623157e308", "2.2250738585072014e-308", "1e300"),
    "bf16": ("bf16", "float", "3.40282347e38f", "1.17549435e-38f", "1e37f"),
}


@dataclass
class Compiled:
    """A module's machine code as text, and what each kernel takes: {name: {registers, shared, spilled, parameters}},
    bytes of static shared memory and of each parameter."""

    listing: str
    uses: dict


def suffixed(text):
    """Literals with a decimal point, made single: what `suffixed` of module.rs does."""
    token = r'//[^\n]*|/\*.*?\*/|"[^"]*"|\d(?:[\w.]|(?<=[eE])[+-])*|[A-Za-z_.][\w.]*'

    def single(m):
        word = m[0]
        if not word[0].isdigit() or not re.search("[.e]", word):
            return word
        try:
            float(word)
        except ValueError:
            return word
        return word + "f"

    return re.sub(token, single, text, flags=re.DOTALL | re.ASCII)


def modules(root):
    """{name: its .cu files} as the Rust sources declare them: `Module::new("NAME", &[include_str!("FILE"), …])`."""
    found = {}
    for rust in sorted((root / "src").rglob("*.rs")):
        for declared in rust.read_text().split("Module::new(")[1:]:
            name, *files = declared.split("])")[0].split('"')[1::2] or [""]
            if name.endswith(".cu"):
                found[name] = [rust.parent / f for f in files if f.endswith((".cu", ".cuh"))]
    return found


def source(root, name, dtype, sizes=None):
    """The text that module.rs gives to NVRTC. Of kernels that exist for several tiles, `KERNELS(R)`, only those of
    these sizes, if given: they compile sooner."""
    s, real, largest, least, fastest = TYPES[dtype]
    text = f"struct bf16 {{ unsigned short bits; }};\ntypedef {s} S;\ntypedef {real} real;\n#define LARGEST {largest}\n"
    text += f"#define LEAST_NORMAL {least}\n#define FASTEST {fastest}\n"
    for shared in re.findall(r'\("(cuda/\w+\.cuh)"', (root / "src/cuda/module.rs").read_text()):
        text += f'#line 1 "src/{shared}"\n{(root / "src" / shared).read_text()}\n'
    files = modules(root).get(name)
    if not files:
        raise LookupError(f"{name}: {root}/src declares no such module")
    own = "".join(f.read_text() for f in files)
    if sizes:
        own = re.sub(r"^[A-Z_]+\((?:channels_)?(\d)\b[^)\n]*\)$", lambda m: m[0] if m[1] in sizes else "", own, flags=re.MULTILINE)
    text += f'#line 1 "src/{name}"\n{own}'
    return suffixed(text) if real == "float" else text


@functools.cache
def nvrtc():
    """The library; it opens its builtins by name, so they are loaded first."""
    folder = SITE / "nvidia/cu13/lib"
    for builtins in folder.glob("libnvrtc-builtins.so.13.*"):
        ctypes.CDLL(builtins, mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(folder / "libnvrtc.so.13")


def build(name, text, arch):
    """(cubin, PTX, log)"""
    library, program = nvrtc(), ctypes.c_void_p()
    library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), name.encode(), 0, None, None)
    options = [f"--gpu-architecture={arch}".encode(), b"--std=c++17", b"-lineinfo", b"--ptxas-options=-v"]
    failed = library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))

    def output(what):
        size = ctypes.c_size_t()
        getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        getattr(library, f"nvrtcGet{what}")(program, buffer)
        return buffer.raw

    log = output("ProgramLog").rstrip(b"\0").decode()
    cubin, ptx = (None, None) if failed else (output("CUBIN"), output("PTX").rstrip(b"\0").decode())
    library.nvrtcDestroyProgram(ctypes.byref(program))
    if failed:
        raise SystemExit(f"{name} for {arch}: NVRTC: {log}")
    return cubin, ptx, log


def disassemble(cubin):
    """nvdisasm's text, with the source's lines."""
    CACHE.mkdir(parents=True, exist_ok=True)
    path = CACHE / f"{hashlib.sha256(cubin).hexdigest()[:16]}.cubin"
    path.write_bytes(cubin)
    done = subprocess.run([TOOLS / "nvdisasm", "-g", "-c", path], capture_output=True, text=True)
    path.unlink()
    if done.returncode:
        raise SystemExit(f"nvdisasm: {done.stderr}")
    return done.stdout


def kept(key, make):
    """What `make` gives, or gave before for the same key: (text, JSON)."""
    stem = CACHE / hashlib.sha256("\0".join(key).encode()).hexdigest()[:24]
    listing, uses = stem.with_suffix(".sass"), stem.with_suffix(".json")
    if not uses.exists():
        text, about = make()
        CACHE.mkdir(parents=True, exist_ok=True)
        listing.write_text(text)
        uses.write_text(json.dumps(about))
    return Compiled(listing.read_text(), json.loads(uses.read_text()))


def parameters(ptx, kernel):
    """The size of each parameter."""
    sizes = []
    for row in ptx.split(f".entry {kernel}(")[1].split("{")[0].splitlines():
        if found := re.search(r"\.param .*\.[a-z](\d+)\s.*?param_\d+(?:\[(\d+)\])?", row):
            sizes.append(int(found[1]) // 8 * int(found[2] or 1))
    return sizes


def number(pattern, text):
    found = re.search(pattern, text)
    return int(found[1]) if found else 0


def compiled(root, name, dtype, arch, sizes=None):
    """The module's machine code."""
    text = source(root, name, dtype, sizes)

    def make():
        cubin, ptx, log = build(name, text, arch)
        uses = {}
        for part in log.split("Compiling entry function '")[1:]:
            kernel, rest = part.split("'", 1)
            spilled = number(r"(\d+) bytes spill stores", rest) + number(r"(\d+) bytes spill loads", rest)
            uses[kernel] = {
                "registers": number(r"Used (\d+) registers", rest),
                "shared": number(r"(\d+) bytes smem", rest),
                "spilled": spilled,
                "parameters": parameters(ptx, kernel),
            }
        return disassemble(cubin), uses

    versions = [importlib.metadata.version(p) for p in ("nvidia-cuda-nvrtc", "triton")]
    return kept([text, arch, *versions], make)
