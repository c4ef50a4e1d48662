//! How much memory there is.

use std::fs;

/// About how many bytes of memory this process can still have: the least of what the system has free, what its control
/// groups leave, and what its limit of addresses does. Where none of these can be read, any number.
pub fn available() -> usize {
    let of = [system(), groups(), addresses()];
    of.into_iter().flatten().min().unwrap_or(usize::MAX)
}

/// The number after a name in a file of lines.
fn field(text: &str, name: &str) -> Option<usize> {
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

fn system() -> Option<usize> {
    field(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")?.checked_mul(1024)
}

/// The bytes that the limits of all control groups of this process leave: the least of them.
fn groups() -> Option<usize> {
    let number = |path: String| fs::read_to_string(path).ok()?.trim().parse::<usize>().ok();
    // A group's use counts the files that the system keeps in memory while nobody needs it.
    let left = |dir: &str, most: &str, now: &str, files: &str| {
        let used = number(format!("{dir}/{now}")).unwrap_or(0);
        let files = fs::read_to_string(format!("{dir}/memory.stat")).ok().and_then(|text| field(&text, files));
        Some(number(format!("{dir}/{most}"))?.saturating_sub(used.saturating_sub(files.unwrap_or(0))))
    };
    let mut least = None;
    for line in fs::read_to_string("/proc/self/cgroup").ok()?.lines() {
        let [_, of, path] = line.splitn(3, ':').collect::<Vec<_>>()[..] else { continue };
        let (root, most, now, files) = match of {
            "" => ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file "),
            of if of.split(',').any(|of| of == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ")
            }
            _ => continue,
        };
        // A group's limit holds for the groups inside of it; in a container its path may be a path of the host.
        let parents = std::path::Path::new(path).ancestors().map(|path| path.display().to_string());
        for path in parents.chain(["/".into()]) {
            let here = left(&format!("{root}{path}"), most, now, files);
            least = [least, here].into_iter().flatten().min();
        }
    }
    least
}

fn addresses() -> Option<usize> {
    let most = field(&fs::read_to_string("/proc/self/limits").ok()?, "Max address space")?;
    let pages = fs::read_to_string("/proc/self/status").ok()?;
    Some(most.saturating_sub(field(&pages, "VmSize:")?.saturating_mul(1024)))
}
