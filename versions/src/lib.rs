//! `#[versions::versions]`: a function of tapezoo compiled three times, plainly, for AVX2 and for AVX-512. Which one is
//! called, `crate::tensor::simd` says, for all functions at once.

use proc_macro::TokenStream;
use quote::{format_ident, quote};
use syn::{FnArg, GenericParam, ItemFn, parse_macro_input};

/// The features that a processor needs for the version for AVX-512. They came with Ice Lake; earlier processors slow down
/// for its instructions.
const AVX512: &str = "avx512bitalg,avx512bw,avx512cd,avx512dq,avx512f,avx512ifma,avx512vbmi,avx512vbmi2,avx512vl,\
                      avx512vnni,avx512vpopcntdq,gfni,vaes,vpclmulqdq";

/// Compile a function three times. Inside, `IN_AVX512` says whether this is the version for AVX-512.
#[proc_macro_attribute]
pub fn versions(_: TokenStream, item: TokenStream) -> TokenStream {
    let ItemFn { attrs, vis, sig, block, .. } = parse_macro_input!(item as ItemFn);
    let version = |name: &str| {
        let mut sig = sig.clone();
        sig.ident = format_ident!("{name}");
        let is = name == "avx512";
        quote!(#sig { #[allow(dead_code)] const IN_AVX512: bool = #is; #block })
    };
    let [plain, avx2, avx512] = ["plain", "avx2", "avx512"].map(version);

    // The versions take the arguments apart; what chooses one only hands them on. Lifetimes are inferred.
    let mut outer = sig.clone();
    let mut names = vec![];
    for (i, arg) in outer.inputs.iter_mut().enumerate() {
        let FnArg::Typed(arg) = arg else { panic!("a method has no versions: give it a function to call") };
        let name = format_ident!("argument_{i}");
        arg.pat = syn::parse_quote!(#name);
        names.push(name);
    }
    let types: Vec<_> = sig
        .generics
        .params
        .iter()
        .filter_map(|param| match param {
            GenericParam::Type(t) => Some(&t.ident),
            GenericParam::Const(c) => Some(&c.ident),
            GenericParam::Lifetime(_) => None,
        })
        .collect();
    quote! {
        #(#attrs)*
        #vis #outer {
            #[inline(always)]
            #plain
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                #avx2
                #[target_feature(enable = #AVX512)]
                #avx512
                match crate::tensor::simd::level() {
                    // SAFETY: the processor has what this version is compiled for.
                    crate::tensor::simd::Level::Avx512 => return unsafe { avx512::<#(#types),*>(#(#names),*) },
                    // SAFETY: the same.
                    crate::tensor::simd::Level::Avx2 => return unsafe { avx2::<#(#types),*>(#(#names),*) },
                    crate::tensor::simd::Level::Plain => {}
                }
            }
            plain::<#(#types),*>(#(#names),*)
        }
    }
    .into()
}
