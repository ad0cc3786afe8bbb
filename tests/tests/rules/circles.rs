//! Circles of files that need each other. Within a folder they are one subject in several files;
//! across folders they tie rooms together, so that neither can be read, tested or moved without the
//! other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A module's path below the crate, `["vhost_user", "port"]`.
type Module = Vec<String>;

/// One crate's modules: what each uses, and what it passes on by `pub use`.
struct Crate {
    uses: BTreeMap<Module, Vec<Module>>,
    passed_on: BTreeMap<Module, BTreeMap<String, Module>>,
}

/// The circles in the crate whose sources are in `src` that reach across its folders, each as the
/// names of its modules.
pub fn across_folders(src: &Path) -> Vec<String> {
    let krate = Crate::read(src);
    let graph = krate.graph();
    let mut found = BTreeSet::new();
    for start in graph.keys() {
        let reached = reach(&graph, start);
        let circle: BTreeSet<_> =
            reached.into_iter().filter(|other| reach(&graph, other).contains(start)).collect();
        let folders: BTreeSet<_> = circle.iter().map(|module| folder(&graph, module)).collect();
        if folders.len() > 1 {
            found.insert(circle.iter().map(|m| m.join("::")).collect::<Vec<_>>().join(", "));
        }
    }
    found.into_iter().collect()
}

/// The folder below `src` that a module's file is in or heads; `None`: none of them.
fn folder<'a>(graph: &BTreeMap<Module, BTreeSet<Module>>, module: &'a Module) -> Option<&'a str> {
    let top = module.first()?;
    let has_files = graph.keys().any(|other| other.len() > 1 && other.first() == Some(top));
    has_files.then_some(top)
}

fn reach(graph: &BTreeMap<Module, BTreeSet<Module>>, from: &Module) -> BTreeSet<Module> {
    let (mut seen, mut left) = (BTreeSet::new(), vec![from]);
    while let Some(at) = left.pop() {
        left.extend(graph[at].iter().filter(|to| seen.insert((*to).clone())));
    }
    seen
}

impl Crate {
    fn read(src: &Path) -> Self {
        let mut krate = Self { uses: BTreeMap::new(), passed_on: BTreeMap::new() };
        let mut files = Vec::new();
        walk(src, &mut files);
        for file in files {
            let below = file.strip_prefix(src).expect("below").with_extension("");
            let mut module: Module =
                below.iter().map(|part| part.to_string_lossy().into_owned()).collect();
            // Programs beside the library are crates of their own.
            if module[0] == "bin" || module == ["main"] {
                continue;
            }
            if module.last().is_some_and(|name| name == "mod") || module == ["lib"] {
                module.pop();
            }
            krate.add(module, &product(&std::fs::read_to_string(&file).expect("a source")));
        }
        krate
    }

    fn add(&mut self, module: Module, text: &str) {
        let (mut uses, mut passed_on) = (Vec::new(), BTreeMap::new());
        for statement in text.split(';') {
            let at = statement.rfind("use ").filter(|at| is_use(statement, *at));
            let Some(at) = at else {
                uses.extend(paths_in(statement));
                continue;
            };
            uses.extend(paths_in(&statement[..at]));
            let is_public = statement[..at].trim_end().ends_with(['b', ')']);
            for path in expand(&statement[at + 4..]) {
                match (is_public, path.split_last()) {
                    (true, Some((name, _))) => _ = passed_on.insert(name.clone(), path.clone()),
                    _ => uses.push(path),
                }
            }
        }
        self.uses.insert(module.clone(), uses);
        self.passed_on.insert(module, passed_on);
    }

    fn graph(&self) -> BTreeMap<Module, BTreeSet<Module>> {
        let targets = |(module, uses): (&Module, &Vec<Module>)| {
            let all = uses.iter().filter_map(|path| self.resolve(module, path, 8));
            // The crate itself is no room: what is defined there, everybody may use.
            let others = all.filter(|target| target != module && !target.is_empty()).collect();
            (module.clone(), others)
        };
        self.uses.iter().map(targets).collect()
    }

    /// The module that `path`, written in `module`, leads to; `None` outside this crate.
    fn resolve(&self, module: &Module, path: &[String], depth: u32) -> Option<Module> {
        let mut at = match path.first()?.as_str() {
            "crate" => Vec::new(),
            "super" => module.split_last()?.1.to_vec(),
            "self" => module.clone(),
            child => {
                let child = [&module[..], &[child.to_owned()]].concat();
                let near = self.uses.contains_key(&child)
                    || self.passed_on[module].contains_key(path.first()?);
                near.then(|| module.clone())?
            }
        };
        let skip = usize::from(matches!(path[0].as_str(), "crate" | "super" | "self"));
        for (n, name) in path.iter().enumerate().skip(skip) {
            if name == "super" {
                at.pop();
                continue;
            }
            let child = [&at[..], std::slice::from_ref(name)].concat();
            if self.uses.contains_key(&child) {
                at = child;
            } else if let Some(real) = self.passed_on.get(&at).and_then(|names| names.get(name))
                && depth > 0
                && real.first() != Some(name)
            {
                let rest = [&real[..], &path[n + 1..]].concat();
                return self.resolve(&at, &rest, depth - 1).or(Some(at));
            } else {
                break;
            }
        }
        Some(at)
    }
}

fn walk(dir: &Path, files: &mut Vec<PathBuf>) {
    for path in std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && name != "tests" && name != "fuzz" {
            walk(&path, files);
        } else if name.ends_with(".rs") && name != "tests.rs" && name != "fuzz.rs" {
            files.push(path);
        }
    }
}

/// Without comments, and without tests at its end.
fn product(text: &str) -> String {
    let end = text.find("#[cfg(test)]\nmod ").unwrap_or(text.len());
    let code = text[..end].lines().filter(|line| !line.trim_start().starts_with("//"));
    code.collect::<Vec<_>>().join("\n")
}

fn is_use(statement: &str, at: usize) -> bool {
    let before = statement[..at].trim_end();
    before.is_empty() || before.ends_with([']', '}', '{', 'b', ')'])
}

/// Paths that begin at the crate or the module above.
fn paths_in(text: &str) -> Vec<Module> {
    let words = text.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
    let paths = words.filter(|word| word.starts_with("crate::") || word.starts_with("super::"));
    paths.map(|path| path.split("::").map(str::to_owned).collect()).collect()
}

/// `a::{b, c::{d, e as f}}`: each path in it.
fn expand(tree: &str) -> Vec<Module> {
    let tree = tree.trim();
    let Some(open) = tree.find('{') else {
        let path = tree.split(" as ").next().unwrap_or_default();
        let parts = path.split("::").map(|part| part.trim().to_owned());
        return vec![parts.filter(|part| part != "self" || path == "self").collect()];
    };
    let head: Module =
        tree[..open].split("::").filter(|p| !p.is_empty()).map(|p| p.trim().to_owned()).collect();
    let inside = tree[open + 1..].rsplit_once('}').map_or("", |(inside, _)| inside);
    let (mut depth, mut part, mut all) = (0, String::new(), Vec::new());
    for c in inside.chars().chain([',']) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let part = std::mem::take(&mut part);
                if !part.trim().is_empty() {
                    all.extend(expand(&part).iter().map(|path| [&head[..], path].concat()));
                }
                continue;
            }
            _ => {}
        }
        part.push(c);
    }
    all
}
