// Host versions of the inline PTX that tensor-core kernels need, for a prelude's `#ifdef CUEMU` branch.
//
// All are warp-wide: every lane of a full warp calls them together. The register layouts (which lane holds which
// element of A, B and D) are those of the PTX manual's figures for mma.m16n8k16 and ldmatrix; see machine/tensor.cpp.
#pragma once
namespace cuemu {

// mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32: d += a b, 4 results a lane
inline void mma_m16n8k16_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], Site at = Site::here()) { cuemu_mma_m16n8k16_bf16(d, a, b, at); }

// mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32
inline void mma_m16n8k8_tf32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], Site at = Site::here()) { cuemu_mma_m16n8k8_tf32(d, a, b, at); }

// ldmatrix.sync.aligned.m8n8.x{1,2,4}[.trans].shared.b16: lane i gives the address of row i % 8 of matrix i / 8
template <int N> inline void ldmatrix(unsigned (&registers)[N], const void* row, bool transposed = false, Site at = Site::here()) { cuemu_ldmatrix(registers, row, N, transposed, at); }

// cp.async.{ca,cg}.shared.global: `bytes` of 4, 8 or 16, of which the first `valid` are read and the rest are zero.
// It completes at the earliest, the latest or a random legal moment, as the thread order says, so that a missing wait
// or barrier shows.
inline void cp_async(void* shared, const void* global, int bytes, int valid) { cuemu_copy_async(shared, global, bytes, valid); }
inline void cp_async_commit() { cuemu_copy_commit(); }
inline void cp_async_wait(int groups_left) { cuemu_copy_wait(groups_left); }

}  // namespace cuemu
