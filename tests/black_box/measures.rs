//! The ceilings of the measures of our own source: a change that raises one fails.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use crate::harness::{files, workspace};

/// Folders that are measured.
const MEASURED: [&str; 10] = [
    "core/src",
    "server/src",
    "server/process/src",
    "server/log/src",
    "server/resource/src",
    "server/views/src",
    "server/http/src",
    "server/publish/src",
    "client",
    "queue/src",
];

/// Copies the measured sources, the script and the ceilings.
fn copy_to(folder: &Path) {
    let mut copied = vec!["tests/measures.py".into(), "tests/ceilings".into()];
    for measured in MEASURED {
        let root = workspace().join(measured);
        let paths = files(&root).into_iter().map(|(path, _)| path);
        let paths = paths.map(|path| path.strip_prefix(workspace()).unwrap().to_owned());
        copied.extend(paths.filter(|path| path.extension().is_some_and(|kind| kind == "rs")));
    }
    for path in copied {
        let to = folder.join(&path);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(workspace().join(&path), to).unwrap();
    }
}

fn check(folder: &Path) -> Output {
    let mut python = Command::new("python3");
    python.arg(folder.join("tests/measures.py")).arg("--check");
    python.output().unwrap()
}

/// Goal: each ceiling holds, and says where it is passed.
#[test]
fn a_measure_that_is_raised_fails() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    copy_to(folder);
    let measured = check(folder);
    let said = String::from_utf8_lossy(&measured.stderr);
    assert!(measured.status.success(), "{said}");
    let (digest, timestamp) = ("core/src/digest.rs", "core/src/timestamp.rs");
    let block: String = (0..12)
        .map(|number| format!("    let planted{number} = repeated{number}(planted);\n"))
        .collect();
    let block = format!("fn planted() {{\n{block}}}\n");
    let long = format!("fn planted() {{\n{}}}\n", "    let it = 1;\n".repeat(81));
    // Each with the message of the check, and the code that is planted in some files.
    let bugs: [(&str, Vec<(&str, String)>); 7] = [
        (
            "circles between modules",
            vec![
                (digest, "use crate::timestamp::Timestamp;\n".into()),
                (timestamp, "use crate::digest::Digest;\n".into()),
            ],
        ),
        // The same, by a name that the root gives on.
        (
            "circles between modules",
            vec![
                ("core/src/lib.rs", "pub use digest::Digest;\n".into()),
                (digest, "use crate::timestamp::Timestamp;\n".into()),
                (timestamp, "use crate::Digest;\n".into()),
            ],
        ),
        (
            "repeated blocks",
            vec![(digest, block.clone()), (timestamp, block)],
        ),
        ("functions over 80 lines", vec![(digest, long)]),
        (
            "docs of three words",
            vec![(digest, "/// Is planted.\npub fn planted() {}\n".into())],
        ),
        (
            "participles as names of types",
            vec![(digest, "struct Planted;\n".into())],
        ),
        (
            "names of several types",
            vec![
                (digest, "struct Twin;\n".into()),
                (timestamp, "struct Twin;\n".into()),
            ],
        ),
    ];
    for (told, planted) in bugs {
        let before = planted
            .iter()
            .map(|(file, _)| fs::read_to_string(folder.join(file)).unwrap());
        let before: Vec<String> = before.collect();
        for ((file, code), before) in planted.iter().zip(&before) {
            fs::write(folder.join(file), format!("{code}\n{before}")).unwrap();
        }
        let measured = check(folder);
        let said = String::from_utf8_lossy(&measured.stderr).into_owned();
        assert!(!measured.status.success(), "{told}");
        assert!(
            said.contains(told) && said.contains("digest"),
            "{told}: {said}"
        );
        for ((file, _), before) in planted.iter().zip(before) {
            fs::write(folder.join(file), before).unwrap();
        }
    }
    // So does a ratio beyond its goal.
    let before = fs::read_to_string(folder.join(digest)).unwrap();
    let lines = format!("fn planted_one() {{\n{}}}\n", "    planted();\n".repeat(70));
    for (told, code) in [
        (
            "'what' in 1,000 words",
            "// what what what what what what what what\n".repeat(100),
        ),
        (
            "'it' and 'its' in 1,000 words",
            "// it its it its it its it its\n".repeat(500),
        ),
        (
            "function names of one word",
            "fn planted() {\n}\n".repeat(2_000),
        ),
        ("lines of a function", lines.repeat(1_000)),
        ("lines of reasons", lines.repeat(1_000)),
    ] {
        // In front of the file, where no module of tests hides the code.
        fs::write(folder.join(digest), format!("{code}{before}")).unwrap();
        let measured = check(folder);
        let said = String::from_utf8_lossy(&measured.stderr);
        assert!(
            !measured.status.success() && said.contains(told),
            "{told}: {said}"
        );
    }
    fs::write(folder.join(digest), before).unwrap();
    // A ceiling does not stay above what is there.
    let ceilings = fs::read_to_string(folder.join("tests/ceilings")).unwrap();
    let lines = ceilings.lines().map(|line| {
        let (name, ceiling) = line.rsplit_once(' ').unwrap();
        format!("{name} {}\n", ceiling.parse::<usize>().unwrap() + 1)
    });
    fs::write(folder.join("tests/ceilings"), lines.collect::<String>()).unwrap();
    let measured = check(folder);
    let said = String::from_utf8_lossy(&measured.stderr);
    assert!(
        !measured.status.success() && said.contains("lower the ceiling"),
        "{said}"
    );
}
