//! The places of the CUDA libraries and of the compiled kernels, and the target that a kernel is compiled for.

use std::fs;
use tapezoo::{
    cuda::{
        Module,
        cache::Cache,
        compile::target,
        locate::{complete, find, newest_libraries, packages},
    },
    tensor::DType,
};

#[test]
fn an_entry_is_made_once_and_again_if_it_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::at(dir.path());
    let mut made = 0;
    let mut get = |key: &[&str]| {
        let image = cache.get(key, || {
            made += 1;
            Ok::<_, ()>(key.concat().into_bytes())
        });
        (image.unwrap(), made)
    };
    assert_eq!(get(&["source", "-O3"]), (b"source-O3".to_vec(), 1));
    assert_eq!(get(&["source", "-O3"]), (b"source-O3".to_vec(), 1));
    assert_eq!(get(&["source-", "O3"]), (b"source-O3".to_vec(), 2));
    let entries = || fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().path());
    assert_eq!(entries().count(), 2);
    // A file that is cut short, has a changed byte or is empty is noticed.
    let damages: [fn(&mut Vec<u8>); 3] = [|b| b.truncate(20), |b| b[18] ^= 1, Vec::clear];
    for (i, damage) in damages.into_iter().enumerate() {
        for path in entries() {
            let mut bytes = fs::read(&path).unwrap();
            damage(&mut bytes);
            fs::write(&path, bytes).unwrap();
        }
        assert_eq!(get(&["source", "-O3"]), (b"source-O3".to_vec(), 3 + i));
    }
}

#[test]
fn a_failure_is_passed_on_and_not_kept() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::at(&dir.path().join("not yet there"));
    assert_eq!(cache.get(&["k"], || Err("does not compile")), Err("does not compile"));
    assert_eq!(cache.get(&["k"], || Ok::<_, ()>(vec![7])), Ok(vec![7]));
    assert_eq!(cache.get(&["k"], || Err("not asked")), Ok(vec![7]));
}

#[test]
fn a_directory_that_cannot_be_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    let cache = Cache::at(&dir.path().join("file/below"));
    assert_eq!(cache.get(&["k"], || Ok::<_, ()>(vec![7])), Ok(vec![7]));
}

#[test]
fn libraries_of_one_family_and_version_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    for (dir, file) in [(&a, "libnvrtc.so.12"), (&b, "libnvrtc.so.13"), (&b, "libnvrtc-builtins.so.13.0")] {
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join(file), "").unwrap();
    }
    let both = [a.clone(), b.clone()];
    assert_eq!(find(&both, "libnvrtc", 13), Some(b.join("libnvrtc.so.13")));
    assert_eq!(find(&both, "libnvrtc", 12), Some(a.join("libnvrtc.so.12")));
    assert_eq!(find(&both, "libnvrtc-builtins", 13), Some(b.join("libnvrtc-builtins.so.13.0")));
    assert_eq!(find(&both, "libcublas", 13), None);
    let why = complete(&both, 13).unwrap_err().unwrap();
    assert!(why.ends_with("b/libnvrtc.so.13 has no libcublas.so.13 beside it"), "{why}");
    fs::write(b.join("libcublas.so.13"), "").unwrap();
    assert_eq!(complete(&both, 13).unwrap().len(), 3);
    assert_eq!(complete(&both, 11), Err(None));
}

#[test]
fn packages_of_an_environment_are_looked_in() {
    let dir = tempfile::tempdir().unwrap();
    let nvidia = dir.path().join("lib/python3.12/site-packages/nvidia");
    fs::create_dir_all(nvidia.join("cu13/lib")).unwrap();
    assert_eq!(packages(dir.path())[0], [nvidia.join("cu13/lib")]);
    assert_eq!(packages(dir.path())[1], [nvidia.join("cuda_nvrtc/lib"), nvidia.join("cublas/lib")]);
}

#[test]
fn literals_become_single() {
    let cases = [
        ("0.5 * x", "0.5f * x"),
        ("1.0/x-2.5e-3", "1.0f/x-2.5e-3f"),
        ("1e-30 + a1.x", "1e-30f + a1.x"),
        ("0x1e5 + 12 + 3u + v.e1", "0x1e5 + 12 + 3u + v.e1"),
        ("1.0f // 2.0\n3.0", "1.0f // 2.0\n3.0f"),
        ("\"4.0\" /* 5.0 */ 6.0", "\"4.0\" /* 5.0 */ 6.0f"),
    ];
    for (from, to) in cases {
        let module = Module::new("tests/literals.cu", Vec::leak(vec![from]));
        assert!(module.source(DType::F32).ends_with(&format!("\n{to}")), "{from}");
    }
}

#[test]
fn kernels_are_compiled_for_what_the_device_runs() {
    let nvrtc = [75, 80, 86, 89, 90, 100, 120];
    let target = |capability| target(capability, &nvrtc, (13, 0));
    assert_eq!(target(90).unwrap(), "sm_90");
    // Machine code for 8.6 runs on 8.7; code for 8.9 does not.
    assert_eq!(target(87).unwrap(), "sm_86");
    // A device that NVRTC does not know gets PTX.
    assert_eq!(target(130).unwrap(), "compute_120");
    assert_eq!(target(110).unwrap(), "compute_100");
    let old = target(70).unwrap_err();
    assert!(old.contains("7.0") && old.contains("7.5 and newer") && old.contains("TAPEZOO_CUDA_LIBS"), "{old}");
}

#[test]
fn an_old_device_gets_libraries_that_compile_for_it() {
    assert_eq!(newest_libraries(Some(13), Some(90)), 13);
    assert_eq!(newest_libraries(Some(13), Some(70)), 12);
    assert_eq!(newest_libraries(Some(12), Some(90)), 12);
    assert_eq!(newest_libraries(Some(13), None), 13);
}

#[test]
fn the_source_of_one_kernel_is_the_file_with_its_name_before_it() {
    let module = Module::new("tests/two.cu", &["KERNEL(a)(S* x) {}\nKERNEL(b)(S* x) {}\n"]);
    let (one, whole) = (module.source_of(DType::F32, "b"), module.source(DType::F32));
    assert_eq!(one, format!("#define ONE_KERNEL\n#define ONLY_b ~, extern \"C\"\n{whole}"));
}
