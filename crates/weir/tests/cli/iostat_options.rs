//! `weir iostat` prints what sysstat's iostat prints for generated combinations of options.
//!
//! The comparison omits the differences that docs/iostat.md lists: the `%util` of a group, which is
//! compared after a correction, the sums of a group in the tables of `-x --pretty`, the comma of a
//! group without devices, and the order of devices that are not named in a group.

use std::collections::HashSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::iostat::{MOMENTS, can_replace_proc, timeless, trees};
use crate::support::{Scratch, run, skipped};

/// The settings of which each combination has one of each line.
const SETTINGS: &[&[&str]] = &[
    &["", "-x"],
    &["", "-s"],
    &["", "-d", "-c", "-d -c"],
    &["", "-k", "-m"],
    &["", "-N"],
    &["", "-t"],
    &["", "-y"],
    &["", "-z"],
    &["", "--human"],
    &["", "--pretty", "--pretty --compact"],
    &["", "--dec=0", "--dec=1", "--dec=2"],
    &["", "-o JSON"],
    DEVICES,
    &["", "600"],
];

/// Devices and groups. `nosuch` does not exist.
const DEVICES: &[&str] = &[
    "",
    "ALL",
    "sda sdq",
    "nosuch",
    "sdq nosuch",
    "-p",
    "-p ALL",
    "-p sda",
    "-p sda,sdb",
    "-p sda -p sdq",
    "sda -p",
    "sdq sdb",
    "sdq -p sda",
    "-g g",
    "-g g ALL",
    "-g g -p",
    "-g a sda -g b sdq sdc",
    "-g sda sda sdq",
    "sdr -g a sda -g b ALL",
    "-H -g a sda -g b sdq",
    "-H sds -g g sda sdq",
    "-g e -g g sda",
    "-g a sda sdr -g b sda sdq",
    "-g g nosuch",
    "-g a -p sda -g b sdq",
];

/// The names of groups in `DEVICES`.
const GROUPS: [&str; 5] = ["a", "b", "e", "g", "sda"];

/// Runs iostat with each line of `$3` as options, all of them with the same trees in place of /proc
/// and /sys: `$1` contains three trees, `$2` is an empty directory for the outputs. The interval is
/// so long that it never ends; the next report is triggered by the signal of iostat's timer, when
/// every iostat sleeps, as it does only between reports.
const SYSSTAT: &str = r#"
trees=$1 work=$2 options=$3
files="stat diskstats uptime"
lay() {
    for file in $files; do cat "$trees/root$1/proc/$file" > "$work/$file"; done
    rm -rf /sys/block /sys/dev; cp -r "$trees/root$1/sys/." /sys/
}
settle() {
    for pid in $pids; do
        while [ -e "/proc/$pid/stat" ]; do
            read -r _ comm state _ < "/proc/$pid/stat" || break
            case "$comm $state" in "(iostat) S" | "(iostat) Z") break ;; esac
            sleep 0.02
        done
    done
}
for file in $files; do : > "$work/$file"; mount --bind "$work/$file" "/proc/$file"; done
mount -t tmpfs none /sys
lay 1
i=0 pids=
while read -r line; do
    iostat $line > "$work/out.$i" 2>&1 &
    i=$((i + 1)) pids="$pids $!"
done < "$options"
settle
for moment in 2 3; do
    lay "$moment"
    kill -ALRM $pids 2> "$work/ended" || :
    settle
done
wait
"#;

/// Combinations of settings in which each three settings occur together at least once.
fn combinations() -> Vec<Vec<usize>> {
    let mut state = 0x2545_F491_4F6C_DD1D_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    let triples = |row: &[usize]| {
        let mut triples = Vec::new();
        for a in 0..row.len() {
            for b in a + 1..row.len() {
                for c in b + 1..row.len() {
                    triples.push([(a, row[a]), (b, row[b]), (c, row[c])]);
                }
            }
        }
        triples
    };
    let (mut rows, mut covered) = (Vec::new(), HashSet::new());
    let mut in_vain = 0;
    while in_vain < 2_000 {
        let row: Vec<usize> = SETTINGS.iter().map(|s| random(s.len())).collect();
        let new: Vec<_> = triples(&row)
            .into_iter()
            .filter(|t| !covered.contains(t))
            .collect();
        in_vain = if new.is_empty() { in_vain + 1 } else { 0 };
        if !new.is_empty() {
            covered.extend(new);
            rows.push(row);
        }
    }
    let sizes: Vec<usize> = SETTINGS.iter().map(|settings| settings.len()).collect();
    let all: usize = triples(&sizes)
        .iter()
        .map(|t| t.iter().map(|(_, n)| n).product::<usize>())
        .sum();
    assert_eq!(
        covered.len(),
        all,
        "some three settings do not occur together"
    );
    rows
}

/// The sample trees, in which each device is in all three trees and no counter decreases, so that
/// the sums of groups are defined.
fn steady_trees(samples: &Path, into: &Path) {
    for moment in 1..=MOMENTS {
        let root = into.join(format!("root{moment}"));
        for folder in ["proc", "sys"] {
            fs::create_dir_all(&root).unwrap();
            let from = samples.join(format!("root{moment}")).join(folder);
            let copied = Command::new("cp").arg("-r").args([&from, &root]).status();
            assert!(copied.unwrap().success());
        }
        let first = into.join("root1/sys/block");
        for device in ["dm-2", "sdb"] {
            let to = root.join("sys/block").join(device);
            if moment > 1 {
                let _ = fs::remove_dir_all(&to);
                let copied = Command::new("cp")
                    .arg("-r")
                    .args([&first.join(device), &to])
                    .status();
                assert!(copied.unwrap().success());
            }
        }
        let path = root.join("proc/diskstats");
        let text = fs::read_to_string(&path).unwrap();
        let mut lines: Vec<&str> = text.lines().collect();
        lines.retain(|line| !line.contains(" sdb ") && !line.contains(" dm-2 "));
        let line = |name: &str, counters: String| {
            fs::write(root.join("sys/block").join(name).join("stat"), &counters).unwrap();
            format!("   8 16 {name} {counters}")
        };
        let sdb = line(
            "sdb",
            format!("{} 7 4216 3107 0 0 0 0 0 41 3086 0 0 0 0", 51 * moment),
        );
        let dm = line("dm-2", "0 0 0 0 0 0 0 0 0 0 0 0 0 0 0".to_owned());
        lines.extend([sdb.as_str(), dm.as_str()]);
        fs::write(&path, lines.join("\n") + "\n").unwrap();
    }
}

/// The output of a run, without that of a group that differs.
struct Comparable {
    lines: Vec<String>,
    /// The number of the report, and the `%util` of a group in it.
    group_utils: Vec<(usize, f64)>,
}

impl Comparable {
    fn new(text: &str, options: &str) -> Comparable {
        let has = |option: &str| options.split(' ').any(|o| o == option);
        let (extended, json) = (has("-x"), has("JSON"));
        // sysstat sums up a group in the first of the four tables only.
        let in_parts = extended && has("--pretty") && !has("-s") && !has("--compact") && !json;
        let mut report = usize::from(has("-y") && has("600"));
        let mut comparable = Comparable {
            lines: Vec::new(),
            group_utils: Vec::new(),
        };
        for line in timeless(text).lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let is_title = words.contains(&"Device") || words == ["\"disk\":", "["];
            report += usize::from(is_title);
            let is_group = GROUPS.iter().any(|name| {
                let pretty = has("--pretty") && line.ends_with(&format!("  {name}"));
                let plain = line.starts_with(&format!(" {name} "));
                pretty || plain || line.contains(&format!("\"disk_device\": \" {name}\""))
            });
            // For a group without devices sysstat writes the comma only.
            let is_left_out = json && extended && matches!(words[..], [] | [","]);
            if is_left_out && has("-g") {
                continue;
            }
            if !is_group || !extended {
                comparable.lines.push(line.trim_end_matches(',').to_owned());
            } else if !in_parts {
                let (rest, util) = split_util(line, has("--pretty") && !json);
                comparable.lines.push(rest);
                comparable.group_utils.push((report, util));
            }
        }
        // The rest of a group: sysstat lists it in the order of the directory.
        let unordered = ["-g g", "-g g ALL", "-g b ALL", "-p sda -g"];
        if unordered.iter().any(|rest| options.contains(rest)) {
            comparable.lines.sort();
        }
        comparable
    }
}

/// The line of a group without its last number, and the number.
fn split_util(line: &str, name_last: bool) -> (String, f64) {
    let line = line.trim_end_matches(['}', ',']);
    let (line, name) = match name_last {
        true => line.trim_end().rsplit_once(' ').unwrap(),
        false => (line, ""),
    };
    let (rest, number) = line.trim_end().rsplit_once(' ').unwrap();
    let util = number.trim_end_matches('%').parse();
    (format!("{} {name}", rest.trim_end()), util.unwrap())
}

#[test]
fn each_three_options_together_print_what_sysstat_prints() {
    let test = "each_three_options_together_print_what_sysstat_prints";
    let Some(samples) = trees(test) else { return };
    if !can_replace_proc() {
        return skipped(test, "needs root and sysstat's iostat");
    }
    let scratch = Scratch::new();
    let (trees, work) = (scratch.path().join("trees"), scratch.path().join("work"));
    steady_trees(&samples, &trees);
    fs::create_dir(&work).unwrap();
    let options: Vec<String> = combinations()
        .iter()
        .map(|row| {
            let words = row.iter().zip(SETTINGS).map(|(at, settings)| settings[*at]);
            let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
            words.join(" ")
        })
        .collect();
    let with_count = |options: &String| {
        let reports = MOMENTS - usize::from(options.split(' ').any(|o| o == "-y"));
        match options.split(' ').next_back() {
            Some("600") => format!("{options} {reports}"),
            _ => options.clone(),
        }
    };
    let mut list = String::new();
    for options in &options {
        writeln!(list, "{}", with_count(options)).unwrap();
    }
    let file = scratch.path().join("options");
    fs::write(&file, list).unwrap();
    let theirs = Command::new("timeout")
        .args([
            "300", "unshare", "--mount", "bash", "-e", "-c", SYSSTAT, "bash",
        ])
        .args([&trees, &work, &file])
        .env("LC_ALL", "C")
        .env("TZ", "UTC")
        .stdin(Stdio::null())
        .status();
    assert!(theirs.unwrap().success());
    let mut differences = Vec::new();
    for (i, options) in options.iter().enumerate() {
        let theirs = fs::read_to_string(work.join(format!("out.{i}"))).unwrap();
        let ours = weir(&trees, &with_count(options));
        differences.extend(difference(options, &ours, &theirs));
    }
    let (all, shown) = (options.len(), differences.iter().take(5));
    let shown: Vec<&String> = shown.collect();
    assert!(
        differences.is_empty(),
        "{} of {all}: {shown:#?}",
        differences.len()
    );
}

/// `weir iostat --from root1 .. OPTIONS`: without an interval only the first tree.
fn weir(trees: &Path, options: &str) -> String {
    let moments = if options.contains(" 600 ") || options.starts_with("600") {
        MOMENTS
    } else {
        1
    };
    let roots = (1..=moments).map(|i| trees.join(format!("root{i}")));
    let roots: Vec<PathBuf> = roots.collect();
    let mut args = vec!["iostat"];
    for root in &roots {
        args.extend(["--from", root.to_str().unwrap()]);
    }
    args.extend(options.split_whitespace());
    run(&args).fine()
}

fn difference(options: &str, ours: &str, theirs: &str) -> Option<String> {
    let (our, their) = (
        Comparable::new(ours, options),
        Comparable::new(theirs, options),
    );
    let at = our.lines.iter().zip(&their.lines).position(|(a, b)| a != b);
    let lengths = (our.lines.len(), their.lines.len());
    if at.is_some() || lengths.0 != lengths.1 {
        let at = at.unwrap_or(lengths.0.min(lengths.1));
        let (a, b) = (our.lines.get(at), their.lines.get(at));
        return Some(format!(
            "iostat {options}\nline {at} of {lengths:?}\nours   {a:?}\ntheirs {b:?}"
        ));
    }
    // sysstat divides by the devices of all reports so far.
    let decimals = options
        .split_once("--dec=")
        .map_or("2", |(_, rest)| &rest[..1]);
    let decimals: i32 = match options.contains("JSON") {
        true => 2,
        false if options.contains("--human") => decimals.parse::<i32>().unwrap().min(1),
        false => decimals.parse().unwrap(),
    };
    let rounding = 0.5 * 10_f64.powi(-decimals);
    for ((report, our), (_, their)) in our.group_utils.iter().zip(&their.group_utils) {
        let reports = *report as f64;
        if (our - their * reports).abs() > rounding * (reports + 1.0) + 1e-9 {
            return Some(format!(
                "iostat {options}\nreport {report}: %util {our}, theirs {their}"
            ));
        }
    }
    None
}
