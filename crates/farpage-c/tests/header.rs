//! `include/farpage.h` is what cbindgen makes of the source.

use std::path::Path;

macro_rules! source {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        concat!(
            "/// Numbers of a pager. Bytes where the name says so, else pages or counts since it was made.\n",
            "#[repr(C)] pub struct fp_stats {",
            $($("///", $doc, "\n",)+ "pub ", stringify!($name), ": u64,",)+
            "}"
        )
    };
}

/// `fp_stats`, which a macro makes, as cbindgen can read it.
const STATS: &str = engine::pager_stats!(source);

#[test]
fn the_header_is_that_of_the_source() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let mut builder = cbindgen::Builder::new().with_config(config);
    let folder = tempfile::tempdir().unwrap();
    let stats = folder.path().join("stats.rs");
    std::fs::write(&stats, STATS).unwrap();
    let source = |name: &str| root.join("src").join(name).with_extension("rs");
    for path in [source("status"), source("pager"), stats, source("region"), source("allocator")] {
        builder = builder.with_src(path);
    }
    let mut made = Vec::new();
    builder.generate().unwrap().write(&mut made);
    let path = root.join("include/farpage.h");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let made = String::from_utf8(made).unwrap();
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = kept.lines().zip(made.lines()).position(|(a, b)| a != b);
    let line = differs.unwrap_or(kept.lines().count().min(made.lines().count())) + 1;
    assert!(
        kept == made,
        "include/farpage.h differs from line {line} on: BLESS=1 cargo test -p farpage-c --test header"
    );
}
