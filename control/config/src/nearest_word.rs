//! The nearest valid word, for people who mistype.

use std::cmp::Reverse;

/// `did you mean 'tap'?` where a word is near, and in any case the list of words.
pub fn hint(given: &str, words: &[&str]) -> String {
    let near = words
        .iter()
        .map(|w| (strsim::damerau_levenshtein(given, w), Reverse(shared(given, w)), *w))
        .filter(|(distance, _, w)| *distance <= w.len().div_ceil(3).max(1))
        .min();
    let all = words.join(", ");
    match near {
        Some((.., word)) => format!("did you mean '{word}'? (valid: {all})"),
        None => format!("valid: {all}"),
    }
}

/// Letters that both have.
fn shared(a: &str, b: &str) -> usize {
    let mut left: Vec<_> = b.chars().collect();
    let mut take =
        |c: char| left.iter().position(|l| *l == c).map(|at| left.swap_remove(at)).is_some();
    a.chars().filter(|c| take(*c)).count()
}

#[cfg(test)]
mod tests {
    use super::hint;

    #[test]
    fn near_words_are_offered_and_far_ones_are_not() {
        let words = ["vhost-user", "tap", "stream"];
        assert!(hint("vhostuser", &words).starts_with("did you mean 'vhost-user'?"));
        assert!(hint("tpa", &words).starts_with("did you mean 'tap'?"));
        // As near to both, with more letters of one.
        let modes = ["mode", "model"];
        assert!(hint("modl", &modes).starts_with("did you mean 'model'?"));
        assert!(hint("mod", &modes).starts_with("did you mean 'mode'?"));
        assert_eq!(hint("bluetooth", &words), "valid: vhost-user, tap, stream");
    }
}
